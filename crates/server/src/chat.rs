//! A conversation to be answered, whatever protocol it came by.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use wootz::reasoning::ReasoningTags;
use wootz::sample::{Logprobs, SamplingParams};
use wootz::template::{ChatInput, ChatTemplate, Content, LocalTime, Message, Segment};
use wootz::tools::{OutputParser, ToolFormat};
use wootz::{Constraint, Event, Finish, Model, Overflow, Request, StopReason, Tokenizer, tools};

use crate::budget::Budget;
use crate::constrain::{Compiled, Shape, literal, until};
use crate::error::{ApiError, Kind};
use crate::models::Loaded;
use crate::run::Run;
use crate::server::App;
use crate::toolcall::{self, Choice};

/// What every kind of generation takes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) sampling: SamplingParams,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Answers to generate.
    pub(crate) n: usize,
    pub(crate) cache_prompt: bool,
    pub(crate) priority: i32,
    pub(crate) user: u64,
    /// Whether a prompt that does not fit is cut.
    pub(crate) truncate: bool,
    /// Tokens at the start of a text that stay where it is cut.
    pub(crate) keep: usize,
}

/// Tokens of an answer for which a prompt that is cut leaves room, where a request does not say.
const RESERVE: usize = 256;

impl Settings {
    /// Positions that a prompt which is cut leaves to its answer.
    pub(crate) fn reserve(&self, context: usize) -> usize {
        self.max_tokens.unwrap_or(RESERVE).min(context / 4)
    }
}

/// A conversation to be answered.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) messages: Vec<Message>,
    /// Definitions as in OpenAI's `tools`.
    pub(crate) tools: Vec<Value>,
    pub(crate) choice: Choice,
    /// Whether one answer may hold several calls.
    pub(crate) parallel: bool,
    pub(crate) shape: Option<Shape>,
    /// The field that asked for the shape, for messages.
    pub(crate) shape_field: &'static str,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether reasoning is told apart from the answer.
    pub(crate) split_reasoning: bool,
    /// Tokens of reasoning at most.
    pub(crate) budget: Option<usize>,
    pub(crate) settings: Settings,
}

/// A task made ready for the engine.
pub(crate) struct Prepared {
    pub(crate) prompt: Vec<u32>,
    /// The prompt as text.
    pub(crate) text: String,
    parser: ParserSpec,
    limits: Limits,
    shown: Vec<u32>,
    settings: Settings,
    /// Messages that were left out.
    left_out: usize,
}

/// A conversation as a prompt.
struct Rendered {
    tokens: Vec<u32>,
    text: String,
    /// The form of calls.
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningTags>,
    /// Whether the prompt ends inside reasoning.
    opened: bool,
}

/// A way to leave out the oldest messages of a conversation, behind its rules.
struct Cut {
    /// Rules at the start.
    rules: usize,
    /// A question that stays although what follows it is left out.
    question: Option<usize>,
    /// The first message that stays behind that.
    from: usize,
}

impl Cut {
    fn apply(&self, messages: &[Message]) -> Vec<Message> {
        let question = self.question.map(|i| &messages[i]);
        messages[..self.rules].iter().chain(question).chain(&messages[self.from..]).cloned().collect()
    }
}

/// The ways to shorten a conversation, each of which leaves out more than the one before: whole turns, then, behind the
/// last question, calls of tools with their answers.
fn cuts(messages: &[Message]) -> Vec<Cut> {
    let rules = messages.iter().take_while(|m| matches!(m.role.as_str(), "system" | "developer")).count();
    let with_role =
        |role: &'static str, from: usize| (from..messages.len()).filter(move |i| messages[*i].role == role);
    let turns = with_role("user", rules + 1).map(|from| Cut { rules, question: None, from });
    let last = with_role("user", rules).next_back();
    let steps = last.into_iter().flat_map(|question| {
        let answers = with_role("assistant", question + 1).skip(1);
        answers.map(move |from| Cut { rules, question: Some(question), from })
    });
    turns.chain(steps).collect()
}

/// What limits each answer.
#[derive(Default)]
pub(crate) struct Limits {
    pub(crate) grammar: Option<Compiled>,
    pub(crate) budget: Option<(Arc<Model>, Before, usize)>,
}

impl Limits {
    /// The constraint of one answer.
    fn start(&self) -> Option<Box<dyn Constraint>> {
        let grammar = self.grammar.as_ref().map(Compiled::start);
        match &self.budget {
            Some((model, before, tokens)) => {
                Some(Box::new(Budget::new(model.clone(), before, *tokens, grammar)))
            }
            None => grammar,
        }
    }
}

/// What a parser of the answer needs to know.
#[derive(Clone)]
struct ParserSpec {
    format: Option<ToolFormat>,
    reasoning: Option<ReasoningTags>,
    opened: bool,
    tools: Vec<Value>,
}

/// The seed of the answer with this index: all answers to one request differ, and each can be had again.
fn seed_of(seed: Option<u64>, index: usize) -> Option<u64> {
    seed.map(|seed| seed.wrapping_add(index as u64))
}

/// Requests to the engine for as many answers as the settings ask for.
pub(crate) fn requests(settings: &Settings, prompt: &[u32], limits: &Limits, shown: &[u32]) -> Vec<Request> {
    let one = |index| Request {
        max_tokens: settings.max_tokens,
        sampling: SamplingParams {
            seed: seed_of(settings.sampling.seed, index),
            ..settings.sampling.clone()
        },
        stop: settings.stop.clone(),
        shown: shown.to_vec(),
        cache_prompt: settings.cache_prompt,
        constraint: limits.start(),
        user: settings.user,
        priority: settings.priority,
        overflow: match settings.truncate {
            true => Overflow::Slide { keep: settings.keep.min(prompt.len()) },
            false => Overflow::Refuse,
        },
        ..Request::new(prompt.to_vec())
    };
    (0..settings.n).map(one).collect()
}

impl Task {
    /// Renders and tokenizes the conversation and compiles what limits the answer. Takes its time: not for a thread
    /// that others wait for.
    ///
    /// # Errors
    /// The template refuses the conversation, or what is asked of the answer cannot be kept.
    pub(crate) fn prepare(mut self, loaded: &Loaded) -> Result<Prepared, ApiError> {
        let _span = tracing::debug_span!("prepare").entered();
        let model = loaded.model();
        let template = model.chat_template()?;
        let caps = template.capabilities();
        if let Some(system) = &loaded.preset.system
            && !self.messages.iter().any(|m| matches!(m.role.as_str(), "system" | "developer"))
        {
            self.messages.insert(0, Message::new("system", system.clone()));
        }
        check_messages(&self.messages)?;
        let messages = std::mem::take(&mut self.messages);
        let (rendered, left_out) = self.fit(loaded, template, messages)?;
        let Rendered { tokens, text, format, reasoning, opened } = rendered;
        let tokenizer = model.tokenizer();
        let before = match (reasoning, opened) {
            (Some(tags), true) => Some(Before { tags, opened }),
            // Only where the template itself can ask for reasoning may it come unasked.
            (Some(tags), false) if caps.thinking_switch => Some(Before { tags, opened }),
            _ => None,
        };
        let grammar = self.grammar(loaded, tokenizer, format, before, template.source())?;
        let budget = self.budget.zip(before).map(|(tokens, before)| (model.clone(), before, tokens));
        let limits = Limits { grammar, budget };
        let tags = Some(reasoning.unwrap_or(ReasoningTags::THINK)).filter(|_| self.split_reasoning);
        let markers = format.into_iter().flat_map(ToolFormat::markers);
        let shown = shown(tokenizer, markers.chain(reasoning.into_iter().flat_map(|t| [t.open, t.close])));
        // Where no call may be, nothing is read as one.
        let format = format.filter(|_| self.choice != Choice::None);
        let parser = ParserSpec { format, reasoning: tags, opened, tools: self.tools };
        Ok(Prepared { prompt: tokens, text, parser, limits, shown, settings: self.settings, left_out })
    }

    /// The prompt of a conversation, and how many messages were left out of it so that it fits, where that is asked for.
    fn fit(
        &self,
        loaded: &Loaded,
        template: &ChatTemplate,
        messages: Vec<Message>,
    ) -> Result<(Rendered, usize), ApiError> {
        if !self.settings.truncate {
            return Ok((self.render(loaded.model(), template, messages)?, 0));
        }
        let whole = self.render(loaded.model(), template, messages.clone())?;
        let context = loaded.engine.limits().context;
        let longest = context - self.settings.reserve(context);
        if whole.tokens.len() <= longest {
            return Ok((whole, 0));
        }
        // What follows loses more and more, so the first that fits is found by halving.
        let (mut cuts, mut found) = (&cuts(&messages)[..], None);
        while let Some((cut, rest)) = cuts.get(cuts.len() / 2).zip(cuts.get(cuts.len() / 2 + 1..)) {
            let left = cut.apply(&messages);
            let left_out = messages.len() - left.len();
            let rendered = self.render(loaded.model(), template, left)?;
            if rendered.tokens.len() <= longest {
                found = Some((rendered, left_out));
                cuts = &cuts[..cuts.len() / 2];
            } else {
                cuts = rest;
            }
        }
        // Where nothing helps it is refused as it came.
        Ok(found.unwrap_or((whole, 0)))
    }

    /// The prompt of these messages.
    fn render(
        &self,
        model: &Model,
        template: &ChatTemplate,
        mut messages: Vec<Message>,
    ) -> Result<Rendered, ApiError> {
        let caps = template.capabilities();
        let offered = if self.choice == Choice::None { &[][..] } else { &self.tools };
        let native = caps.tools;
        let format = match (offered.is_empty() && !mentions_tools(&messages), native) {
            (true, _) => None,
            (false, true) => ToolFormat::detect(template.source()).or(Some(ToolFormat::Tagged)),
            (false, false) => Some(ToolFormat::Tagged),
        };
        // An answer that the client has begun is continued.
        let begun = match messages.last() {
            Some(last) if last.role == "assistant" && last.tool_calls.is_empty() => {
                let last = messages.pop().unwrap_or_default();
                Some(text_of(&last.content)).filter(|text| !text.is_empty())
            }
            _ => None,
        };
        let tools = if native { offered.to_vec() } else { Vec::new() };
        if !native && format.is_some() {
            messages = toolcall::in_words(messages, offered, caps.tool_answers && caps.tool_calls);
        }
        let input = ChatInput {
            messages,
            tools,
            add_generation_prompt: true,
            extra: self.variables.clone(),
            now: LocalTime::now_utc(),
        };
        let mut prompt = template.render(&template.adapt(&input)).map_err(wootz::Error::from)?;
        let reasoning = ReasoningTags::detect(template.source());
        let mut opened = reasoning.is_some_and(|tags| tags.opened_by(&prompt.text()));
        if let Some(begun) = begun {
            if let (true, Some(tags)) = (opened, reasoning) {
                // What the client has begun is the answer, not the reasoning before it.
                prompt.segments.push(Segment::Markup(format!("\n{}\n\n", tags.close)));
                opened = false;
            }
            prompt.segments.push(Segment::Text(begun));
        }
        Ok(Rendered { tokens: model.prompt_tokens(&prompt), text: prompt.text(), format, reasoning, opened })
    }

    /// The grammar that the answer must follow, if any.
    fn grammar(
        &self,
        loaded: &Loaded,
        tokenizer: &Tokenizer,
        format: Option<ToolFormat>,
        before: Option<Before>,
        template: &str,
    ) -> Result<Option<Compiled>, ApiError> {
        let calls = match (&self.choice, format) {
            (Choice::Required | Choice::Named(_), Some(format)) => Some((format, true)),
            (Choice::Auto, Some(format)) if self.tools.iter().any(toolcall::is_strict) => {
                Some((format, false))
            }
            _ => None,
        };
        if let Some((format, forced)) = calls {
            if self.shape.is_some() {
                let why = "it cannot be combined with tools that must be called or are strict";
                return Err(ApiError::unsupported(self.shape_field, why));
            }
            let grammar = toolcall::Grammar {
                tokenizer,
                format,
                template,
                tools: &self.tools,
                choice: &self.choice,
                parallel: self.parallel,
                forced,
                before: before.as_ref(),
            };
            return Ok(Some(loaded.grammars()?.lark(grammar.lark()?, "tools")?));
        }
        let Some(shape) = &self.shape else { return Ok(None) };
        if format.is_some() && !self.tools.is_empty() && self.choice != Choice::None {
            let why = "it cannot be combined with tools; send `tool_choice`: \"none\"";
            return Err(ApiError::unsupported(self.shape_field, why));
        }
        let rules = before.map(|before| before.rules(tokenizer));
        loaded.grammars()?.shape(shape, rules.as_deref(), self.shape_field).map(Some)
    }
}

/// Reasoning that may stand before what a grammar describes.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pub(crate) tags: ReasoningTags,
    /// Whether the prompt ends inside it.
    pub(crate) opened: bool,
}

impl Before {
    /// The definition of the rule `reasoning`.
    pub(crate) fn rules(&self, tokenizer: &Tokenizer) -> String {
        let end = until(tokenizer, "thoughts", self.tags.close);
        let space = "/[ \\n]{0,4}/";
        if self.opened {
            format!("{end}reasoning: thoughts {space}\n")
        } else {
            let open = literal(tokenizer, self.tags.open);
            format!("{end}reasoning: ({open} thoughts {space})?\n")
        }
    }
}

/// The control tokens among these markers, which must reach the parser as text.
fn shown(tokenizer: &Tokenizer, markers: impl Iterator<Item = &'static str>) -> Vec<u32> {
    let mut ids: Vec<u32> = markers
        .filter_map(|marker| tokenizer.token_to_id(marker.trim()))
        .filter(|id| tokenizer.is_control(*id))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The text of a message.
pub(crate) fn text_of(content: &Content) -> String {
    match content {
        Content::None => String::new(),
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            parts.iter().filter_map(|p| p["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
    }
}

fn mentions_tools(messages: &[Message]) -> bool {
    messages.iter().any(|m| m.role == "tool" || !m.tool_calls.is_empty())
}

/// Refuses what no model here can read.
fn check_messages(messages: &[Message]) -> Result<(), ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "at least one message"));
    }
    for (i, message) in messages.iter().enumerate() {
        let Content::Parts(parts) = &message.content else { continue };
        for (k, part) in parts.iter().enumerate() {
            let path = format!("messages[{i}].content[{k}]");
            match part["type"].as_str() {
                Some("text" | "input_text" | "output_text") if part["text"].is_string() => {}
                Some("refusal") if part["refusal"].is_string() => {}
                Some("text" | "input_text" | "output_text") => {
                    return Err(ApiError::field(format!("{path}.text"), "a string"));
                }
                Some(other) => {
                    let why = format!("a part of type {other:?}: models of this server read text only");
                    return Err(ApiError::unsupported(path, why));
                }
                None => return Err(ApiError::field(format!("{path}.type"), "a string")),
            }
        }
    }
    Ok(())
}

impl Prepared {
    /// Starts the answers.
    ///
    /// # Errors
    /// The prompt does not fit, or the queue is full.
    pub(crate) fn start(self, app: &App, loaded: Arc<Loaded>) -> Result<Answers, ApiError> {
        let Prepared { prompt, parser, limits, shown, settings, left_out, .. } = self;
        let limit = loaded.engine.limits().context;
        let mut settings = settings;
        // A bound that is above what fits is no wish for so much.
        let room = (limit + 1).saturating_sub(prompt.len());
        if room > 0 {
            settings.max_tokens = settings.max_tokens.map(|n| n.min(room));
        }
        let requests = requests(&settings, &prompt, &limits, &shown);
        let run = Run::start(loaded.clone(), app.metrics.clone(), requests, app.options.timeout)?;
        let answers = (0..settings.n).map(|_| Answer::new(&parser)).collect();
        let prompt_tokens = prompt.len();
        Ok(Answers { run, answers, prompt_tokens, left_out, loaded, started: Instant::now() })
    }
}

/// Counts the tokens of a task's prompt.
///
/// # Errors
/// As [`Task::prepare`].
pub(crate) async fn count(task: Task, loaded: Arc<Loaded>) -> Result<usize, ApiError> {
    blocking(move || Ok(task.prepare(&loaded)?.prompt.len())).await
}

/// Runs `prepare` where it holds up nobody, then starts the answers.
///
/// # Errors
/// As [`Task::prepare`] and [`Prepared::start`].
pub(crate) async fn start(app: &Arc<App>, loaded: Arc<Loaded>, task: Task) -> Result<Answers, ApiError> {
    let app = app.clone();
    blocking(move || task.prepare(&loaded)?.start(&app, loaded)).await
}

/// Runs work that takes its time.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .unwrap_or_else(|e| Err(ApiError::new(Kind::Internal, format!("preparing the request failed: {e}"))))
}

/// Answers that are being generated.
pub(crate) struct Answers {
    run: Run,
    answers: Vec<Answer>,
    pub(crate) prompt_tokens: usize,
    /// Messages that were left out of the prompt.
    pub(crate) left_out: usize,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) started: Instant,
}

struct Answer {
    parser: OutputParser,
    reasoning_tokens: usize,
    calls: usize,
}

/// Why an answer ended, as protocols see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended it.
    Stop,
    /// At a stop text.
    StopText(String),
    /// As long as it may be.
    Length,
    /// It ends with calls of tools.
    ToolCalls,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) end: End,
    pub(crate) finish: Finish,
    pub(crate) reasoning_tokens: usize,
}

/// What became known of an answer.
pub(crate) struct Step {
    pub(crate) index: usize,
    pub(crate) events: Vec<tools::Event>,
    pub(crate) token: Option<u32>,
    pub(crate) logprobs: Option<Logprobs>,
    /// Set with the last step of an answer.
    pub(crate) summary: Option<Summary>,
}

impl Answer {
    fn new(spec: &ParserSpec) -> Answer {
        let parser = OutputParser::new(spec.format, spec.reasoning, spec.opened, &spec.tools);
        Answer { parser, reasoning_tokens: 0, calls: 0 }
    }

    fn count(&mut self, events: &[tools::Event]) {
        self.calls +=
            events.iter().filter(|e| matches!(e, tools::Event::ToolCallEnd { complete: true, .. })).count();
    }
}

impl Answers {
    /// Puts into a reply how many messages were left out, if any were.
    pub(crate) fn tell_left_out(&self, reply: &mut Value) {
        if self.left_out > 0 {
            reply["truncated_messages"] = self.left_out.into();
        }
    }

    /// What comes next of any answer; `None` when all have ended.
    ///
    /// # Errors
    /// An answer failed; nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<Step, ApiError>> {
        loop {
            let (index, event) = match self.run.next().await? {
                Ok(event) => event,
                Err(e) => return Some(Err(e)),
            };
            let answer = &mut self.answers[index];
            match event {
                Event::Prompt { .. } | Event::Failed(_) => {}
                Event::Token(token) => {
                    let events = answer.parser.push(&token.text);
                    let thinks = |e: &tools::Event| matches!(e, tools::Event::Reasoning(_));
                    answer.reasoning_tokens += usize::from(!events.is_empty() && events.iter().all(thinks));
                    answer.count(&events);
                    let logprobs = token.logprobs;
                    return Some(Ok(Step {
                        index,
                        events,
                        token: Some(token.token),
                        logprobs,
                        summary: None,
                    }));
                }
                Event::Done(finish) => {
                    let mut events = answer.parser.push(&finish.text);
                    events.extend(answer.parser.finish());
                    answer.count(&events);
                    let end = match &finish.reason {
                        StopReason::Length | StopReason::ContextFull => End::Length,
                        _ if answer.calls > 0 => End::ToolCalls,
                        StopReason::StopText(text) => End::StopText(text.clone()),
                        StopReason::EndOfText | StopReason::Cancelled => End::Stop,
                    };
                    let summary = Summary { end, finish, reasoning_tokens: answer.reasoning_tokens };
                    let summary = Some(summary);
                    return Some(Ok(Step { index, events, token: None, logprobs: None, summary }));
                }
            }
        }
    }

    /// All answers, whole.
    ///
    /// # Errors
    /// An answer failed.
    pub(crate) async fn collect(&mut self) -> Result<Vec<Whole>, ApiError> {
        let mut all: Vec<Whole> = self.answers.iter().map(|_| Whole::default()).collect();
        while let Some(step) = self.next().await {
            let step = step?;
            let whole = &mut all[step.index];
            for event in step.events {
                whole.add(event);
            }
            whole.tokens.extend(step.token);
            whole.logprobs.extend(step.logprobs);
            if step.summary.is_some() {
                whole.summary = step.summary;
            }
        }
        Ok(all)
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// JSON, unless the answer broke off.
    pub(crate) arguments: String,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Logprobs>,
    pub(crate) summary: Option<Summary>,
}

impl Whole {
    fn add(&mut self, event: tools::Event) {
        match event {
            tools::Event::Content(text) => self.content.push_str(&text),
            tools::Event::Reasoning(text) => self.reasoning.push_str(&text),
            tools::Event::ToolCallStart { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            tools::Event::ToolCallArguments { delta, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&delta);
                }
            }
            tools::Event::ToolCallEnd { .. } => {}
        }
    }
}

/// Counts of tokens of one or several answers to one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(crate) fn add(&mut self, summary: &Summary) {
        self.add_finish(&summary.finish);
        self.reasoning += summary.reasoning_tokens;
    }

    /// Adds one more answer to the same prompt.
    pub(crate) fn add_finish(&mut self, finish: &Finish) {
        let t = &finish.timings;
        // Later answers find the prompt that the first has computed.
        self.cached = if self.prompt == 0 { t.cached_tokens } else { self.cached.min(t.cached_tokens) };
        self.prompt = t.prompt_tokens;
        self.generated += t.generated_tokens;
    }

    pub(crate) fn of(answers: &[Whole]) -> Usage {
        let mut usage = Usage::default();
        answers.iter().filter_map(|a| a.summary.as_ref()).for_each(|s| usage.add(s));
        usage
    }

    /// As OpenAI's chat and completions write it.
    pub(crate) fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
        })
    }
}

/// Times and speeds of an answer, as llama.cpp writes them.
pub(crate) fn timings(finish: &Finish) -> Value {
    let t = &finish.timings;
    let computed = t.prompt_tokens - t.cached_tokens;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let each = |time: f64, n: usize| if n > 0 { time / n as f64 } else { 0.0 };
    json!({
        "cache_n": t.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": ms(t.prompt),
        "prompt_per_token_ms": each(ms(t.prompt), computed),
        "prompt_per_second": t.prompt_speed(),
        "predicted_n": t.generated_tokens,
        "predicted_ms": ms(t.generation),
        "predicted_per_token_ms": each(ms(t.generation), t.generated_tokens.saturating_sub(1)),
        "predicted_per_second": t.generation_speed(),
        "queued_ms": ms(t.queued),
    })
}
