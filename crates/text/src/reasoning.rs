//! Tells a model's reasoning from its answer while both stream in.

use crate::stop::{Piece, Scanner};

/// The tags around a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// What opens the reasoning.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
}

impl ReasoningTags {
    /// `<think>` and `</think>`, which most models use.
    pub const THINK: Self = Self { open: "<think>", close: "</think>" };

    /// All tags known; the first that a template mentions are its model's.
    pub const KNOWN: [Self; 9] = [
        Self { open: "<seed:think>", close: "</seed:think>" },
        Self { open: "[THINK]", close: "[/THINK]" },
        Self { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
        Self { open: "<|channel>thought", close: "<channel|>" },
        Self { open: "<|inner_prefix|>", close: "<|inner_suffix|>" },
        Self { open: "◁think▷", close: "◁/think▷" },
        Self::THINK,
        Self { open: "<thinking>", close: "</thinking>" },
        Self { open: "<reasoning>", close: "</reasoning>" },
    ];

    /// The tags that a template's source mentions.
    pub fn detect(template: &str) -> Option<Self> {
        Self::KNOWN
            .into_iter()
            .find(|tags| template.contains(tags.open.trim_end()) && template.contains(tags.close))
            .or_else(|| template.contains(Self::THINK.close).then_some(Self::THINK))
    }

    /// Whether a prompt ends inside reasoning that the template opened.
    pub fn opened_by(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}

/// A stretch of a model's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
}

/// Splits streamed output into reasoning and answer.
///
/// Reasoning comes first or not at all: a tag that follows text is part of the answer. White
/// space around the tags belongs to neither. Text is held back only while it may be part of a tag
/// or white space before one. How the text was cut into pieces never changes the outcome.
///
/// ```
/// use wootz_text::reasoning::{Delta, ReasoningSplitter, ReasoningTags};
///
/// let mut splitter = ReasoningSplitter::new(ReasoningTags::THINK, false);
/// assert_eq!(splitter.push("<think>\nEasy.\n"), [Delta::Reasoning("Easy.".into())]);
/// assert_eq!(splitter.push("</think>\n\n4"), [Delta::Content("4".into())]);
/// ```
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    tags: ReasoningTags,
    state: State,
    /// White space that belongs to the text before it if more text follows.
    space: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space so far; looks for either tag.
    Start(Scanner),
    /// In the reasoning; looks for its end. Whether it has text.
    Inside(Scanner, bool),
    /// Behind the reasoning; white space is skipped.
    Gap,
    Answer,
}

impl ReasoningSplitter {
    /// A splitter; `opened` says that the prompt ended inside the reasoning.
    pub fn new(tags: ReasoningTags, opened: bool) -> Self {
        let state = match opened {
            true => State::Inside(Scanner::new([tags.close]), false),
            false => State::Start(Scanner::new([tags.open, tags.close])),
        };
        Self { tags, state, space: String::new() }
    }

    /// Takes the next piece of output.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut out = Vec::new();
        let mut rest = text;
        while !rest.is_empty() || matches!(self.state, State::Start(_) | State::Inside(..)) {
            match &mut self.state {
                State::Start(scanner) => match scanner.next(&mut rest) {
                    None => break,
                    Some(Piece::Text(text)) if text.trim().is_empty() => self.space.push_str(&text),
                    Some(Piece::Text(text)) => {
                        let mut answer = std::mem::take(&mut self.space);
                        answer.push_str(&text);
                        // The tag found or begun behind this text is part of the answer.
                        match scanner.next(&mut "") {
                            Some(Piece::Marker(0)) => answer.push_str(self.tags.open),
                            Some(Piece::Marker(_)) => answer.push_str(self.tags.close),
                            _ => answer.push_str(&scanner.take()),
                        }
                        out.push(Delta::Content(answer));
                        self.state = State::Answer;
                    }
                    Some(Piece::Marker(tag)) => {
                        self.space.clear();
                        self.state = match tag {
                            0 => State::Inside(Scanner::new([self.tags.close]), false),
                            _ => State::Gap,
                        };
                    }
                },
                State::Inside(scanner, begun) => match scanner.next(&mut rest) {
                    None => break,
                    Some(Piece::Text(text)) => {
                        let text = if *begun { &text } else { text.trim_start() };
                        let body = text.trim_end();
                        if !body.is_empty() {
                            let mut shown = std::mem::take(&mut self.space);
                            shown.push_str(body);
                            out.push(Delta::Reasoning(shown));
                            *begun = true;
                        }
                        self.space.push_str(&text[body.len()..]);
                    }
                    Some(Piece::Marker(_)) => {
                        self.space.clear();
                        self.state = State::Gap;
                    }
                },
                State::Gap => {
                    rest = rest.trim_start();
                    if !rest.is_empty() {
                        self.state = State::Answer;
                    }
                }
                State::Answer => out.push(Delta::Content(std::mem::take(&mut rest).to_owned())),
            }
        }
        out
    }

    /// Ends the stream and gives what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut held = std::mem::take(&mut self.space);
        let delta = match std::mem::replace(&mut self.state, State::Answer) {
            State::Start(mut scanner) => {
                held.push_str(&scanner.take());
                Delta::Content(held)
            }
            State::Inside(mut scanner, _) => {
                held.push_str(&scanner.take());
                Delta::Reasoning(held)
            }
            State::Gap | State::Answer => return Vec::new(),
        };
        match &delta {
            Delta::Content(text) | Delta::Reasoning(text) if text.is_empty() => Vec::new(),
            _ => vec![delta],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, pieces};

    fn split(text: &str, opened: bool, rng: Option<&mut Rng>) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(ReasoningTags::THINK, opened);
        let pieces = match rng {
            Some(rng) => pieces(text, rng),
            None => vec![text],
        };
        let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
        deltas.extend(splitter.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    assert!(!text.is_empty() && content.is_empty());
                    reasoning.push_str(&text);
                }
                Delta::Content(text) => {
                    assert!(!text.is_empty());
                    content.push_str(&text);
                }
            }
        }
        (reasoning, content)
    }

    /// The meaning, told on the whole text.
    fn oracle(text: &str, opened: bool) -> (String, String) {
        let bare = text.trim_start();
        let inside = match (opened, bare.strip_prefix("<think>"), bare.strip_prefix("</think>")) {
            (true, ..) => text,
            (false, Some(inside), _) => inside,
            (false, None, Some(answer)) => return (String::new(), answer.trim_start().into()),
            (false, None, None) => return (String::new(), text.into()),
        };
        match inside.split_once("</think>") {
            Some((reasoning, answer)) => (reasoning.trim().into(), answer.trim_start().into()),
            None => (inside.trim_start().into(), String::new()),
        }
    }

    #[test]
    fn pieces_do_not_change_the_outcome() {
        let mut rng = Rng::new(3);
        let bits = ["<think>", "</think>", "<thi", "</", ">", "a", " ", "\n", "é", "<think", "x y"];
        let mut reasoned = 0;
        for _ in 0..20_000 {
            let text: String = (0..rng.below(9)).map(|_| bits[rng.below(11) as usize]).collect();
            let opened = rng.below(3) == 0;
            let mut want = oracle(&text, opened);
            // Reasoning that never begins is white space, which belongs to nothing.
            if want.0.trim().is_empty() {
                want.0.clear();
            }
            reasoned += usize::from(!want.0.is_empty() && !want.1.is_empty());
            let mut got = split(&text, opened, Some(&mut rng));
            if got.0.trim().is_empty() {
                got.0.clear();
            }
            assert_eq!(got, want, "{text:?} {opened}");
            assert_eq!(split(&text, opened, None).1, got.1);
        }
        assert!(reasoned > 1_000, "{reasoned}");
    }

    #[test]
    fn tags_of_known_templates() {
        assert_eq!(ReasoningTags::detect("x.split('</think>')"), Some(ReasoningTags::THINK));
        assert_eq!(ReasoningTags::detect("'[THINK]' + t + '[/THINK]'").unwrap().close, "[/THINK]");
        assert_eq!(ReasoningTags::detect("plain"), None);
        assert!(ReasoningTags::THINK.opened_by("<|im_start|>assistant\n<think>\n"));
        assert!(!ReasoningTags::THINK.opened_by("<think> in a question\n<|im_start|>assistant\n"));
    }
}
