//! `wootz run`

use anyhow::ensure;
use serde_json::{Value, json};
use wootz::template::{ChatInput, Message};
use wootz::{Engine, Finish, Request, TokenEvent};

use crate::answer::Answer;
use crate::args::RunArgs;
use crate::{common, output};

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let max_tokens = common::max_tokens(args.predict)?;
    let sampling = args.sampling.params();
    sampling.validate()?;
    // The model is opened only once the prompt is there: an empty or broken one costs nothing.
    let mut text = output::text_argument(args.prompt.as_deref())?;
    if !args.raw {
        // The end of the last line is the shell's, not the user's.
        text.truncate(text.trim_end_matches(['\r', '\n']).len());
        ensure!(!text.is_empty(), "the prompt is empty: give a text after the model, or on standard input");
    }
    let engine = common::open_engine(&args.model, &args.device)?;
    let model = engine.model();
    let mut answer = None;
    let prompt = if args.raw {
        model.tokenize(text.as_bytes())
    } else {
        let mut messages = Vec::new();
        messages.extend(args.system.as_ref().map(|s| Message::new("system", s)));
        messages.push(Message::new("user", &text));
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        let prompt = model.chat_prompt(&input)?;
        // Who asks for special tokens wants to see them.
        answer = (!args.special).then_some(Answer::to(model.chat_template()?, &prompt.text()));
        model.prompt_tokens(&prompt)
    };
    let request = Request {
        max_tokens,
        sampling,
        stop: args.stop.clone(),
        show_special: args.special,
        ..Request::new(prompt.clone())
    };
    let mut generation = engine.generate(request)?;
    let handle = generation.handle();
    ctrlc::set_handler(move || handle.cancel())?;
    let mut tokens = Vec::new();
    let finish = common::follow(&mut generation, |event| {
        tokens.push(event.clone());
        match (args.json, args.sampling.logprobs) {
            (true, _) => Ok(()),
            (false, None) => match &mut answer {
                Some(answer) => output::print(&answer.push(&event.text)),
                None => output::print(&event.text),
            },
            (false, Some(_)) => print_logprobs(&engine, event),
        }
    })?;
    if args.json {
        let object = object(&engine, &prompt, &tokens, &finish);
        return output::println(&object.to_string());
    }
    let last = match answer {
        Some(mut answer) => answer.push(&finish.text) + &answer.finish().0,
        None => finish.text.clone(),
    };
    output::println(&last)?;
    output::note(&common::summary(&finish));
    Ok(())
}

/// One line a token: its text, log-probability, and the most likely tokens.
fn print_logprobs(engine: &Engine, event: &TokenEvent) -> anyhow::Result<()> {
    let Some(logprobs) = &event.logprobs else { return Ok(()) };
    let text =
        |token: u32| String::from_utf8_lossy(&engine.model().tokenizer().piece(token, true)).into_owned();
    let mut line = format!("{:<24?} {:>8.4}", text(event.token), logprobs.chosen.logprob);
    for entry in &logprobs.top {
        line.push_str(&format!("  {:?} {:.4}", text(entry.token), entry.logprob));
    }
    output::println(&line)
}

fn object(engine: &Engine, prompt: &[u32], tokens: &[TokenEvent], finish: &Finish) -> Value {
    let text: String = tokens.iter().map(|t| t.text.as_str()).chain([finish.text.as_str()]).collect();
    let t = &finish.timings;
    let mut object = json!({
        "prompt_tokens": prompt,
        "tokens": tokens.iter().map(|t| t.token).collect::<Vec<_>>(),
        "text": text,
        "stop_reason": finish.reason.name(),
        "timings": {
            "prompt_n": t.prompt_tokens,
            "cached_n": t.cached_tokens,
            "generated_n": t.generated_tokens,
            "queued_ms": t.queued.as_secs_f64() * 1e3,
            "prompt_ms": t.prompt.as_secs_f64() * 1e3,
            "generation_ms": t.generation.as_secs_f64() * 1e3,
            "prompt_per_second": t.prompt_speed(),
            "generated_per_second": t.generation_speed(),
        },
    });
    if let Some(list) =
        tokens.iter().map(|t| t.logprobs.as_ref()).collect::<Option<Vec<_>>>().filter(|l| !l.is_empty())
    {
        let entry = |t: &wootz::sample::TokenLogprob| {
            let bytes = engine.model().tokenizer().piece(t.token, true).into_owned();
            json!({ "token": t.token, "text": String::from_utf8_lossy(&bytes), "bytes": bytes, "logprob": t.logprob })
        };
        object["logprobs"] = list
            .iter()
            .map(|l| {
                let mut chosen = entry(&l.chosen);
                chosen["top"] = l.top.iter().map(entry).collect();
                chosen
            })
            .collect();
    }
    object
}
