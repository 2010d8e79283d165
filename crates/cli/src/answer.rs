//! An answer as it streams in: what is shown of it, and what a conversation keeps.

use wootz::template::ChatTemplate;
use wootz::tools::{Event, OutputParser, ToolFormat};

/// The output that answers a prompt.
///
/// Most models' output is shown and kept as it is. That of gpt-oss is made of messages with headers, which are markup:
/// its reasoning is shown before the answer, and the answer alone is kept, as the template takes nothing else back.
pub(crate) struct Answer {
    parser: Option<OutputParser>,
    kept: String,
    /// Reasoning was shown last.
    is_thinking: bool,
}

impl Answer {
    /// The answer to a prompt of a template.
    pub(crate) fn to(template: &ChatTemplate, prompt: &str) -> Answer {
        let addressed = ToolFormat::detect(template.source()) == Some(ToolFormat::Harmony);
        let parser = addressed.then(|| OutputParser::for_template(template, prompt, &[]));
        Answer { parser, kept: String::new(), is_thinking: false }
    }

    /// Takes more output; what is to be shown.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let Some(parser) = &mut self.parser else {
            self.kept.push_str(text);
            return text.to_owned();
        };
        let events = parser.push(text);
        self.show(events)
    }

    /// Ends the output; what is still to be shown, and what is kept.
    pub(crate) fn finish(mut self) -> (String, String) {
        let events = self.parser.as_mut().map(OutputParser::finish).unwrap_or_default();
        let shown = self.show(events);
        (shown, self.kept)
    }

    /// Whether the output is kept as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.parser.is_none()
    }

    fn show(&mut self, events: Vec<Event>) -> String {
        let mut shown = String::new();
        for event in events {
            match event {
                Event::Reasoning(text) => {
                    self.is_thinking = true;
                    shown.push_str(&text);
                }
                Event::Content(text) => {
                    if std::mem::take(&mut self.is_thinking) {
                        shown.push_str("\n\n");
                    }
                    shown.push_str(&text);
                    self.kept.push_str(&text);
                }
                // The arguments of a call are all that it says: nobody here offers tools.
                Event::ToolCallArguments { delta, .. } => shown.push_str(&delta),
                Event::ToolCallStart { .. } | Event::ToolCallEnd { .. } => {}
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(template: &str, pieces: &[&str]) -> (String, String) {
        let mut answer = Answer::to(&ChatTemplate::builtin(template).unwrap(), "");
        let mut shown: String = pieces.iter().map(|piece| answer.push(piece)).collect();
        let (rest, kept) = answer.finish();
        shown.push_str(&rest);
        (shown, kept)
    }

    #[test]
    fn reasoning_is_shown_and_the_answer_kept() {
        let pieces = [
            "<|channel|>ana",
            "lysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|mes",
            "sage|>It is 4.<|return|>",
        ];
        let (shown, kept) = run("gpt-oss", &pieces);
        assert_eq!((shown.as_str(), kept.as_str()), ("Let me see.\n\nIt is 4.", "It is 4."));
        let (shown, kept) = run("gpt-oss", &["<|channel|>final<|message|>Four"]);
        assert_eq!((shown.as_str(), kept.as_str()), ("Four", "Four"));
    }

    #[test]
    fn other_output_stays_as_it_is() {
        let pieces = ["<think>so", "</think>\n4 <|channel|>"];
        let whole = pieces.concat();
        assert_eq!(run("chatml", &pieces), (whole.clone(), whole));
    }

    #[test]
    fn the_template_takes_back_what_is_kept() {
        // As the model's own template does, refuse markup in what was said before.
        let source = "{% for m in messages %}{% if '<|channel|>' in m.content %}{{ raise_exception('markup') }}{% endif %}\
                      <|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}";
        let template = ChatTemplate::new(source).unwrap();
        let output = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
        let mut answer = Answer::to(&template, "");
        answer.push(output);
        let said = |text: &str| wootz::template::ChatInput {
            messages: vec![wootz::template::Message::new("assistant", text)],
            ..Default::default()
        };
        assert!(template.render(&said(&answer.finish().1)).is_ok());
        assert!(template.render(&said(output)).is_err());
    }
}
