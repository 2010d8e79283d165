//! Chat templates: a conversation in, the prompt of the model's family out.
//!
//! Templates are Jinja, with the settings and functions of Hugging Face's `apply_chat_template`.
//! A template comes out of a model file and is not trusted: its work and its output are bounded.
//! What users write is not trusted either: see [`Prompt`].

mod caps;
mod date;
mod families;
mod input;
mod mark;
mod methods;
mod python;
mod source;
mod values;

use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};

pub use caps::Capabilities;
pub use families::TemplateKind;
pub use input::{ChatInput, Content, LocalTime, Message, MessageError, ToolCall};
use mark::{Guard, Level, Marker};

/// Bounds on what a template may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Largest template source in bytes.
    pub source_bytes: usize,
    /// Largest rendered prompt in bytes.
    pub output_bytes: usize,
    /// Work units of one rendering: about one per template instruction or 64 bytes of data.
    /// On top come 1,000 per message and a quarter per byte of the conversation.
    pub fuel: u64,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self { source_bytes: 1 << 18, output_bytes: 16 << 20, fuel: 1 << 19 }
    }
}

/// The token texts of a vocabulary that a template needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Text of the beginning-of-sequence token, `bos_token` in templates.
    pub bos: Option<String>,
    /// Text of the end-of-sequence token, `eos_token` in templates.
    pub eos: Option<String>,
    /// Text of the padding token, `pad_token` in templates.
    pub pad: Option<String>,
    /// Text of the unknown token, `unk_token` in templates.
    pub unk: Option<String>,
    /// Texts of all control tokens of the vocabulary.
    pub control: Vec<String>,
}

/// A rendered conversation.
///
/// The prompt is the concatenation of its segments. Special tokens are to be recognised only
/// where they lie wholly inside one [`Segment::Markup`]; all other text is to be tokenised as if
/// the borders between segments were not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Adjacent segments differ in kind, and none is empty.
    pub segments: Vec<Segment>,
}

/// A run of prompt text of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The template's own text, in which special tokens count.
    Markup(String),
    /// Text from outside, in which nothing is a special token.
    Text(String),
}

impl Segment {
    /// The segment's text.
    pub fn as_str(&self) -> &str {
        match self {
            Segment::Markup(text) | Segment::Text(text) => text,
        }
    }
}

impl Prompt {
    /// The whole prompt as one string.
    pub fn text(&self) -> String {
        self.segments.iter().map(Segment::as_str).collect()
    }

    /// Whether the prompt begins with this token as markup, so that it must not be added again.
    pub fn begins_with(&self, token: &str) -> bool {
        matches!(self.segments.first(), Some(Segment::Markup(text)) if !token.is_empty() && text.starts_with(token))
    }

    fn push(&mut self, c: char, outside: bool) {
        match (self.segments.last_mut(), outside) {
            (Some(Segment::Text(text)), true) | (Some(Segment::Markup(text)), false) => text.push(c),
            (_, true) => self.segments.push(Segment::Text(c.into())),
            (_, false) => self.segments.push(Segment::Markup(c.into())),
        }
    }
}

/// Why a template cannot be used or a conversation not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is too large.
    #[error("chat template is {bytes} bytes long, at most {limit} are accepted")]
    SourceTooLarge {
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The source is not a valid template.
    #[error("chat template, line {line}: {detail}")]
    Syntax {
        /// Line of the source, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// A part of the source is longer than the engine can be trusted with.
    #[error("chat template, line {line}: more than {limit} {what}")]
    TooComplex {
        /// Line of the source, from 1.
        line: usize,
        /// What there is too much of.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// The template did more work than is allowed.
    #[error("chat template does not end within {fuel} steps")]
    OutOfFuel {
        /// Steps allowed.
        fuel: u64,
    },
    /// The template wrote more than is allowed.
    #[error("chat template writes more than {limit} bytes")]
    OutputTooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// The template itself refused the conversation, by `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {detail}")]
    Render {
        /// Line of the source, from 1.
        line: usize,
        /// What went wrong.
        detail: String,
    },
    /// A role is not an identifier, so it could smuggle markup into the prompt.
    #[error("role {role:?} of message {index}: expected letters, digits, `_` and `-`")]
    Role {
        /// Place of the message, from 0.
        index: usize,
        /// The role found.
        role: String,
    },
    /// An extra variable has the name of one that the renderer sets.
    #[error("template variable {name:?} is set by the renderer and cannot be given")]
    Reserved {
        /// The variable's name.
        name: String,
    },
    /// There is no template of our own with this name.
    #[error("no built-in chat template {name:?}; there are: {known}")]
    UnknownBuiltin {
        /// The name asked for.
        name: String,
        /// The names there are, with commas between.
        known: String,
    },
    /// No thread could be had to render on.
    #[error("no thread to render the chat template on: {0}")]
    Thread(#[source] std::io::Error),
    /// The template engine panicked.
    #[error("the chat template makes the template engine fail")]
    Crashed,
    /// The conversation uses up all characters that could mark its text.
    #[error("the conversation holds DEL and all noncharacters from U+FDD0 to U+FDEF")]
    NoMark,
}

/// Carries `raise_exception`'s message through the engine's errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A compiled chat template.
///
/// ```
/// use wootz_text::template::{ChatInput, ChatTemplate, Message, Segment, SpecialTokens};
///
/// let control = ["<|im_start|>", "<|im_end|>"].map(String::from).to_vec();
/// let tokens = SpecialTokens { control, ..SpecialTokens::default() };
/// let template = ChatTemplate::builtin("chatml")?.with_tokens(tokens);
/// let input = ChatInput {
///     messages: vec![Message::new("user", "What does <|im_end|> do?")],
///     add_generation_prompt: true,
///     ..ChatInput::default()
/// };
/// let prompt = template.render(&template.adapt(&input))?;
/// let Segment::Markup(opening) = &prompt.segments[0] else { unreachable!() };
/// assert_eq!(opening, "<|im_start|>user\n");
/// assert_eq!(prompt.segments[1], Segment::Text("What does <|im_end|> do?".into()));
/// # Ok::<(), wootz_text::template::TemplateError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    tokens: SpecialTokens,
    guard: Guard,
    limits: TemplateLimits,
    trusted: Vec<&'static str>,
    caps: std::sync::OnceLock<Capabilities>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template with the default limits.
    ///
    /// # Errors
    /// The source is too large or not valid.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Self::with_limits(source, TemplateLimits::default())
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// The source is too large or not valid.
    pub fn with_limits(source: &str, limits: TemplateLimits) -> Result<Self, TemplateError> {
        if source.len() > limits.source_bytes {
            let (bytes, limit) = (source.len(), limits.source_bytes);
            return Err(TemplateError::SourceTooLarge { bytes, limit });
        }
        let mut env = environment();
        env.add_template_owned(NAME, source::prepare(source)?).map_err(|error| TemplateError::Syntax {
            line: error.line().unwrap_or(1),
            detail: describe(&error),
        })?;
        let trusted = REASONING_TAGS.iter().copied().filter(|tag| source.contains(tag)).collect();
        Ok(Self {
            env,
            source: source.to_owned(),
            tokens: SpecialTokens::default(),
            guard: Guard::new(&[]),
            limits,
            trusted,
            caps: std::sync::OnceLock::new(),
        })
    }

    /// Tells the template the special tokens of its model.
    #[must_use]
    pub fn with_tokens(mut self, tokens: SpecialTokens) -> Self {
        self.guard = Guard::new(&tokens.control);
        self.tokens = tokens;
        self
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation, fails on it, or exceeds its limits; a role is no
    /// identifier; an extra variable has a reserved name.
    pub fn render(&self, input: &ChatInput) -> Result<Prompt, TemplateError> {
        values::check(input)?;
        on_deep_stack(2 * self.fuel(input), || self.render_here(input))?
    }

    fn render_here(&self, input: &ChatInput) -> Result<Prompt, TemplateError> {
        let plain = self.pass(input, Level::Nothing, '\0')?;
        let strings = values::strings(input);
        let texts: Vec<&str> = strings.iter().copied().chain([plain.as_str()]).collect();
        let mark = mark::unused(&texts).ok_or(TemplateError::NoMark)?;
        if let Ok(rendered) = self.pass(input, Level::Everything, mark) {
            let (text, outside) = mark::unmark(&rendered, mark);
            if text == plain {
                return Ok(prompt(&text, &outside));
            }
        }
        let rendered = self.pass(input, Level::Dangerous, mark)?;
        let (text, outside) = mark::unmark(&rendered, mark);
        Ok(prompt(&text, &outside))
    }

    fn fuel(&self, input: &ChatInput) -> u64 {
        let size: usize = values::strings(input).iter().map(|text| text.len()).sum();
        self.limits.fuel + size as u64 / 4 + 1_000 * input.messages.len() as u64
    }

    /// One rendering; marks may double the text, so the bounds of those are wider.
    fn pass(&self, input: &ChatInput, level: Level, mark: char) -> Result<String, TemplateError> {
        let marker = Marker { level, mark, guard: &self.guard };
        let (fuel, limit) = match level {
            Level::Nothing => (self.fuel(input), self.limits.output_bytes),
            _ => (2 * self.fuel(input), self.limits.output_bytes * (1 + mark.len_utf8())),
        };
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel));
        let mut out = Bounded { bytes: Vec::new(), limit, full: false };
        let context = values::context(input, &self.tokens, &marker, &self.trusted);
        let template = env.get_template(NAME);
        let result = template.and_then(|t| t.render_captured_to(context, &mut out).map(|_| ()));
        match result {
            Ok(()) => Ok(String::from_utf8_lossy(&out.bytes).into_owned()),
            Err(_) if out.full => Err(TemplateError::OutputTooLarge { limit: self.limits.output_bytes }),
            Err(error) => Err(failure(&error, fuel)),
        }
    }
}

/// Runs `work` on a thread of its own whose stack is deep enough for all that `fuel` can nest.
///
/// A template can nest lists as deeply as its fuel allows, and the engine recurses into them. A
/// level costs it 7 units and 700 bytes of stack or less. Only what is used takes memory.
fn on_deep_stack<T: Send>(fuel: u64, work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    let stack = (16 << 20) + usize::try_from(fuel).unwrap_or(usize::MAX / 1_024).saturating_mul(160);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(stack);
        let running = thread.spawn_scoped(scope, work).map_err(TemplateError::Thread)?;
        running.join().map_err(|_| TemplateError::Crashed)
    })
}

/// Tags around reasoning that templates look for in earlier answers.
const REASONING_TAGS: [&str; 8] = [
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<seed:think>",
    "</seed:think>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
];

fn prompt(text: &str, outside: &[bool]) -> Prompt {
    let mut prompt = Prompt::default();
    for (c, &outside) in text.chars().zip(outside) {
        prompt.push(c, outside);
    }
    prompt
}

/// The engine with the settings and functions of Hugging Face's chat templates.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    if let Ok(syntax) = syntax {
        env.set_syntax(syntax);
    }
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Number => {
            Ok(out.write_str(&python::python_str(state, value)?)?)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    // These show the engine's own view of values, which Python's Jinja has not.
    env.remove_filter("pprint");
    env.remove_global("debug");
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |state: &State, value: &Value| python::python_str(state, value));
    env.add_filter("trim", |state: &State, value: &Value, chars: Option<String>| {
        let text = python::python_str(state, value)?;
        Ok::<_, minijinja::Error>(methods::strip(&text, chars.as_deref()).to_owned())
    });
    // In Python `None` cannot be iterated, but Jinja's undefined value can.
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
        )
    });
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Raised(message)))
    });
    env
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn failure(error: &minijinja::Error, fuel: u64) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut innermost = error;
    while let Some(at) = cause {
        if let Some(raised) = at.downcast_ref::<Raised>() {
            return TemplateError::Refused { message: raised.0.clone() };
        }
        if let Some(deeper) = at.downcast_ref::<minijinja::Error>() {
            if deeper.kind() == ErrorKind::OutOfFuel {
                return TemplateError::OutOfFuel { fuel };
            }
            innermost = deeper;
        }
        cause = at.source();
    }
    TemplateError::Render {
        line: innermost.line().or(error.line()).unwrap_or(1),
        detail: describe(innermost),
    }
}

/// Collects output up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.full = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
