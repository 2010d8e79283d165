//! `wootz chat`

use std::io::{IsTerminal as _, stdin};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use rustyline::error::ReadlineError;
use serde_json::json;
use wootz::sample::SamplingParams;
use wootz::template::{ChatInput, Content, Message, Prompt, Segment as Part};
use wootz::{ByteSize, Engine, Error, Finish, Handle, Request, Segment, StopReason};

use crate::answer::Answer;
use crate::args::ChatArgs;
use crate::output::OutputFailed;
use crate::{common, output};

const HELP: &str = "\
/system TEXT  set the system message and start anew; without text, show it
/clear        forget the conversation
/regen        answer the last message again
/save FILE    save the conversation and its computed state
/load FILE    load a saved conversation
/stats        counts and speeds of the last answer, memory in use
/help         this list
/exit         leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on; a message between two lines of \"\"\" may have many.";

pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<()> {
    let max_tokens = common::max_tokens(args.predict)?;
    let sampling = args.sampling.params();
    sampling.validate()?;
    let engine = common::open_engine(&args.model, &args.device)?;
    let running: Arc<Mutex<Option<Handle>>> = Arc::default();
    let stop = running.clone();
    ctrlc::set_handler(move || {
        if let Some(handle) = stop.lock().unwrap_or_else(|e| e.into_inner()).as_ref() {
            handle.cancel();
        }
    })?;
    let mut chat = Chat {
        engine,
        running,
        sampling,
        max_tokens,
        stop: args.stop.clone(),
        messages: system(args.system.as_deref()),
        computed: None,
        last: None,
    };
    if let Some(path) = &args.load {
        chat.load(path)?;
    }
    let interactive = stdin().is_terminal();
    if interactive {
        let device = &chat.engine.device().id;
        output::note(&format!("{} on {device}; /help lists commands, Ctrl-D leaves", args.model.model));
    }
    let mut editor = rustyline::DefaultEditor::new()?;
    let history = if interactive { history_file() } else { None };
    if let Some(path) = &history {
        // No history yet is no failure.
        let _ = editor.load_history(path);
    }
    let result = converse(&mut chat, &mut editor, interactive);
    if let Some(path) = &history {
        // A history that cannot be kept loses nothing of the conversation.
        let _ = editor.save_history(path);
    }
    result
}

fn system(text: Option<&str>) -> Vec<Message> {
    text.map(|t| Message::new("system", t)).into_iter().collect()
}

/// The text of a message; conversations here have no other content.
fn text(message: &Message) -> &str {
    match &message.content {
        Content::Text(text) => text,
        _ => "",
    }
}

fn history_file() -> Option<PathBuf> {
    let hub = wootz_hub::Hub::new(None).ok()?;
    let dir = hub.config().cache_dir.clone();
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("chat-history.txt"))
}

fn converse(chat: &mut Chat, editor: &mut rustyline::DefaultEditor, interactive: bool) -> anyhow::Result<()> {
    while let Some(input) = read_message(editor)? {
        let text = input.text.trim();
        if text.is_empty() {
            continue;
        }
        editor.add_history_entry(text)?;
        let command = text.strip_prefix('/').filter(|_| !input.block);
        if command.is_some_and(|name| ["exit", "quit", "bye"].contains(&name)) {
            break;
        }
        let done = match command {
            Some(command) => chat.command(command),
            None => chat.say(text),
        };
        // What goes wrong with one message leaves the conversation as it was. A script, which cannot look and try
        // again, ends here, and so does a conversation that nobody reads.
        match done {
            Err(e) if interactive && !e.is::<OutputFailed>() => {
                output::clear_progress();
                output::note(&format!("error: {}{}", output::causes(&e), hint(&e)));
            }
            done => done?,
        }
    }
    Ok(())
}

/// What helps in a conversation.
fn hint(e: &anyhow::Error) -> &'static str {
    match e.downcast_ref() {
        Some(Error::ContextFull { .. }) => ", or start anew with /clear",
        _ => "",
    }
}

/// What was typed.
struct Input {
    text: String,
    /// It stood between lines of `"""`, and is a message whatever it begins with.
    block: bool,
}

/// Reads one message or command; `None` at the end of input.
fn read_message(editor: &mut rustyline::DefaultEditor) -> anyhow::Result<Option<Input>> {
    let mut text = String::new();
    let mut block = false;
    loop {
        let prompt = if text.is_empty() && !block { "> " } else { ". " };
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                if text.is_empty() {
                    output::note("(Ctrl-D or /exit leaves)");
                }
                return Ok(Some(Input { text: String::new(), block: false }));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(e) => return Err(e).context("cannot read the next message"),
        };
        if line.trim() == "\"\"\"" {
            if block {
                return Ok(Some(Input { text, block }));
            }
            block = true;
        } else if block {
            text.push_str(&line);
            text.push('\n');
        } else if let Some(start) = line.strip_suffix('\\') {
            text.push_str(start);
            text.push('\n');
        } else {
            text.push_str(&line);
            return Ok(Some(Input { text, block }));
        }
    }
}

/// What the engine has computed of the conversation: tokens, and the text that the template makes of them.
struct Computed {
    tokens: Vec<u32>,
    text: String,
}

struct Chat {
    engine: Engine,
    /// The answer that Ctrl-C stops.
    running: Arc<Mutex<Option<Handle>>>,
    sampling: SamplingParams,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    messages: Vec<Message>,
    computed: Option<Computed>,
    last: Option<Finish>,
}

impl Chat {
    fn command(&mut self, command: &str) -> anyhow::Result<()> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" => output::println(HELP),
            "system" if rest.is_empty() => {
                let system = self.messages.iter().find(|m| m.role == "system").map(text);
                output::println(system.unwrap_or("(no system message)"))
            }
            "system" => {
                self.messages = system(Some(rest));
                Ok(())
            }
            "clear" => {
                self.messages.retain(|m| m.role == "system");
                Ok(())
            }
            "regen" => {
                let Some(at) = self.messages.iter().rposition(|m| m.role == "user") else {
                    bail!("there is no message to answer yet");
                };
                let kept = self.messages.split_off(at + 1);
                let result = self.answer();
                if result.is_err() {
                    self.messages.extend(kept);
                }
                result
            }
            "save" if !rest.is_empty() => self.save(Path::new(rest)),
            "load" if !rest.is_empty() => self.load(Path::new(rest)),
            "save" | "load" => bail!("/{name} takes a file"),
            "stats" => self.stats(),
            _ => bail!("there is no command /{name}; /help lists them"),
        }
    }

    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", text));
        let result = self.answer();
        if result.is_err() {
            self.messages.pop();
        }
        result
    }

    /// Answers the last message. Only what is new is computed: the engine keeps the state of what came before.
    fn answer(&mut self) -> anyhow::Result<()> {
        let prompt = self.prompt(true)?;
        let tokens = self.tokens(&prompt);
        let request = Request {
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop: self.stop.clone(),
            ..Request::new(tokens.clone())
        };
        let mut generation = self.engine.generate(request)?;
        *self.running.lock().unwrap_or_else(|e| e.into_inner()) = Some(generation.handle());
        let mut answer = Answer::to(self.engine.model().chat_template()?, &prompt.text());
        let mut generated = Vec::new();
        let finish = common::follow(&mut generation, |event| {
            generated.push(event.token);
            output::print(&answer.push(&event.text))
        });
        *self.running.lock().unwrap_or_else(|e| e.into_inner()) = None;
        let finish = finish?;
        let is_plain = answer.is_plain();
        let mut last = answer.push(&finish.text);
        let (rest, answer) = answer.finish();
        last.push_str(&rest);
        output::println(&last)?;
        match finish.reason {
            StopReason::Length => output::note("(stopped at -n)"),
            StopReason::ContextFull => output::note("(stopped: the context is full; /clear starts anew)"),
            StopReason::Cancelled => output::note("(stopped)"),
            StopReason::EndOfText | StopReason::StopText(_) => {}
        }
        // Where not all is kept, the next prompt holds other tokens.
        self.computed = match is_plain {
            true => self.computed_by(&finish.reason, prompt.text() + &answer, tokens, generated),
            false => None,
        };
        self.messages.push(Message::new("assistant", answer));
        self.last = Some(finish);
        Ok(())
    }

    fn prompt(&self, add_generation_prompt: bool) -> anyhow::Result<Prompt> {
        let input =
            ChatInput { messages: self.messages.clone(), add_generation_prompt, ..ChatInput::default() };
        Ok(self.engine.model().chat_prompt(&input)?)
    }

    /// Tokens of the conversation, as they were computed as far as that goes: a model does not always choose the
    /// tokens that its text would be cut into.
    fn tokens(&self, prompt: &Prompt) -> Vec<u32> {
        let model = self.engine.model();
        let known = self.computed.as_ref();
        let rest = known.and_then(|known| Some((known, after(prompt, &known.text)?)));
        if let Some((known, rest)) = rest {
            let new = model.tokenizer().encode(&rest, false);
            // Only at a special token is text cut the same way whatever comes before.
            if new.first().is_some_and(|token| model.tokenizer().is_control(*token)) {
                return [known.tokens.as_slice(), &new].concat();
            }
        }
        model.prompt_tokens(prompt)
    }

    /// What an answer leaves in the cache, where its text stands for its tokens.
    fn computed_by(
        &self,
        reason: &StopReason,
        text: String,
        mut tokens: Vec<u32>,
        mut generated: Vec<u32>,
    ) -> Option<Computed> {
        let tokenizer = self.engine.model().tokenizer();
        // The template writes the end of an answer itself.
        if *reason == StopReason::EndOfText {
            generated.pop_if(|token| tokenizer.eog().contains(token));
        }
        let cut = matches!(reason, StopReason::StopText(_));
        if cut || generated.iter().any(|token| tokenizer.is_control(*token)) {
            return None;
        }
        tokens.append(&mut generated);
        Some(Computed { tokens, text })
    }

    /// Saves messages as JSON to `path` and the computed state beside it.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let messages: Vec<_> =
            self.messages.iter().map(|m| json!({ "role": m.role, "content": text(m) })).collect();
        let computed = self.computed.as_ref().map(|c| json!({ "tokens": c.tokens, "text": c.text }));
        let list = json!({ "messages": messages, "computed": computed });
        let tokens = self.tokens(&self.prompt(false)?);
        let state = state_file(path);
        let saved = self.engine.with_context({
            let state = state.clone();
            move |context| context.save(&tokens, &state)
        })??;
        output::write_file(path, &(serde_json::to_string_pretty(&list)? + "\n"))?;
        output::note(&format!("saved {} messages, {saved} computed tokens", self.messages.len()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let bytes = output::read_input(path)?;
        let value: serde_json::Value = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no saved conversation", path.display()))?;
        let list = value["messages"]
            .as_array()
            .with_context(|| format!("{} holds no list of messages", path.display()))?;
        self.messages = Message::list_from_json(list)?;
        let tokens: Option<Vec<u32>> = serde_json::from_value(value["computed"]["tokens"].clone()).ok();
        let text = value["computed"]["text"].as_str().map(str::to_owned);
        // Of another model, the tokens mean nothing.
        let known = self.engine.model().tokenizer().vocab_size();
        let tokens = tokens.filter(|list| list.iter().all(|token| (*token as usize) < known));
        self.computed = tokens.zip(text).map(|(tokens, text)| Computed { tokens, text });
        let state = state_file(path);
        let restored = if state.exists() {
            self.engine.with_context(move |context| context.restore(&state))?
        } else {
            Ok(0)
        };
        match restored {
            Ok(n) => output::note(&format!("loaded {} messages, {n} computed tokens", self.messages.len())),
            // The messages are enough: the state is only time saved.
            Err(e) => {
                self.computed = None;
                let n = self.messages.len();
                output::note(&format!("loaded {n} messages; their state is computed anew: {e}"));
            }
        }
        Ok(())
    }

    fn stats(&self) -> anyhow::Result<()> {
        let memory = self.engine.memory()?;
        let last = self.last.as_ref().map_or("no answer yet".to_owned(), common::summary);
        let used = self.prompt(false).map_or(0, |prompt| self.tokens(&prompt).len());
        output::println(&format!(
            "{last}\n{used} of {} tokens of context; memory: weights {}, cache {}, work {}",
            self.engine.limits().context,
            ByteSize(memory.weights),
            ByteSize(memory.caches),
            ByteSize(memory.scratch)
        ))
    }
}

/// The parts of a prompt that follow `text`, where the prompt begins with it.
fn after<'a>(prompt: &'a Prompt, text: &str) -> Option<Vec<Segment<'a>>> {
    let mut text = text;
    let mut rest = Vec::new();
    for part in &prompt.segments {
        let own = part.as_str();
        let common = own.len().min(text.len());
        if own.as_bytes()[..common] != text.as_bytes()[..common] {
            return None;
        }
        text = text.get(common..)?;
        let left = own.get(common..)?;
        if !left.is_empty() {
            rest.push(match part {
                Part::Markup(_) => Segment::Markup(left),
                Part::Text(_) => Segment::Text(left.as_bytes()),
            });
        }
    }
    text.is_empty().then_some(rest)
}

/// The computed state of a conversation lies beside its messages.
fn state_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".state");
    PathBuf::from(name)
}
