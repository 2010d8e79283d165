//! Grammars, schemas and patterns that a request's output must follow.

use std::sync::Arc;

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use wootz::sample::BitMask;
use wootz::{Constraint, ConstraintError, Segment, Tokenizer};

use crate::error::{ApiError, Kind};
use crate::schema::rewrite;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    Schema(Value),
    /// Text that a regular expression describes.
    Regex(String),
    /// A grammar in Lark's syntax, as llguidance reads it.
    Lark(String),
    /// A grammar in llama.cpp's syntax.
    Gbnf(String),
}

impl Shape {
    /// A grammar in either syntax, told apart by their signs of definition.
    pub(crate) fn from_grammar(text: &str) -> Shape {
        let gbnf = text.lines().any(|line| {
            let (name, rest) = line.split_at(line.find("::=").unwrap_or(0));
            rest.starts_with("::=") && !name.contains([':', '"', '#'])
        });
        if gbnf { Shape::Gbnf(text.to_owned()) } else { Shape::Lark(text.to_owned()) }
    }

    /// The rule that follows this shape, in Lark's syntax, with further definitions behind it.
    ///
    /// Only schemas and patterns can stand behind other text.
    fn rule(&self) -> Option<String> {
        match self {
            Shape::JsonObject => Some(schema_rule(&json!({ "type": "object" }))),
            Shape::Schema(schema) => Some(schema_rule(schema)),
            Shape::Regex(pattern) => Some(format!("/{}/", pattern.replace('/', "\\/"))),
            Shape::Lark(_) | Shape::Gbnf(_) => None,
        }
    }
}

/// A schema inside a grammar.
pub(crate) fn schema_rule(schema: &Value) -> String {
    format!("%json {}", compact(schema))
}

/// A schema that fixes white space, where it does not say itself how JSON is to be laid out: a model that may write
/// spaces without end at times does.
fn compact(schema: &Value) -> Value {
    let mut schema = match schema {
        // Anything, or nothing.
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({ "not": {} }),
        other => rewrite(other),
    };
    if let Some(map) = schema.as_object_mut() {
        map.entry("x-guidance").or_insert_with(
            || json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }),
        );
    }
    schema
}

/// Makes constraints for the vocabulary of one model.
pub(crate) struct Grammars {
    factory: ParserFactory,
    ends: Arc<[u32]>,
    vocab: usize,
}

/// A grammar that was found to be sound, to be used by any number of answers.
#[derive(Clone)]
pub(crate) struct Compiled {
    matcher: Matcher,
    ends: Arc<[u32]>,
    vocab: usize,
}

impl Grammars {
    /// Reads the vocabulary, which takes a moment for a large one.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Grammars, ApiError> {
        let internal = |what: String| ApiError::new(Kind::Internal, what);
        let vocab = tokenizer.vocab_size();
        let word = |id: u32| {
            if tokenizer.is_control(id) || tokenizer.is_eog(id) {
                // Markup is apart from text, even where it is spelled the same.
                let mut bytes = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                bytes.extend_from_slice(tokenizer.token_text(id));
                return bytes;
            }
            tokenizer.piece(id, false).into_owned()
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32).map(word).collect();
        let ends: Arc<[u32]> = tokenizer.eog().into();
        let Some(&end) = ends.first() else {
            return Err(internal("the vocabulary has no token that ends a text, which grammars need".into()));
        };
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| internal(e.to_string()))?;
        factory.quiet();
        Ok(Grammars { factory, ends, vocab })
    }

    /// Compiles a shape; where reasoning may come first, `before` defines the rule `reasoning`.
    ///
    /// # Errors
    /// The shape is not sound, or says something that cannot be kept: nothing is ever left out in silence.
    pub(crate) fn shape(
        &self,
        shape: &Shape,
        before: Option<&str>,
        param: &str,
    ) -> Result<Compiled, ApiError> {
        let grammar = match (shape, before, shape.rule()) {
            (Shape::Lark(text), None, _) => TopLevelGrammar::from_lark(text.clone()),
            (Shape::Gbnf(text), None, _) => TopLevelGrammar::from_lark(gbnf(text, param)?),
            (_, _, Some(rule)) => {
                let first = if before.is_some() { "reasoning " } else { "" };
                let before = before.unwrap_or_default();
                TopLevelGrammar::from_lark(format!("start: {first}answer\nanswer: {rule}\n{before}"))
            }
            (_, Some(_), None) => {
                return Err(ApiError::unsupported(
                    param,
                    "this model reasons before it answers, and a grammar would have to cover that; use a schema",
                ));
            }
            (_, None, None) => TopLevelGrammar::from_lark(String::new()),
        };
        self.compile(grammar, param)
    }

    /// Compiles a grammar in Lark's syntax that the server made itself.
    pub(crate) fn lark(&self, text: String, param: &str) -> Result<Compiled, ApiError> {
        self.compile(TopLevelGrammar::from_lark(text), param)
    }

    fn compile(&self, grammar: TopLevelGrammar, param: &str) -> Result<Compiled, ApiError> {
        let refuse = |e: String| {
            let line = e.lines().next().unwrap_or_default();
            // Options of the engine's are nothing that a request could set.
            let reason = line.split(". Enable ").next().unwrap_or(line);
            ApiError {
                param: Some(param.to_owned()),
                ..ApiError::new(Kind::Invalid, format!("`{param}` cannot be honoured: {reason}"))
            }
        };
        let parser = self.factory.create_parser(grammar).map_err(|e| refuse(e.to_string()))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(e) = matcher.get_error() {
            return Err(refuse(e));
        }
        // A warning says that something is kept to only in part.
        if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
            return Err(refuse(warning));
        }
        Ok(Compiled { matcher, ends: self.ends.clone(), vocab: self.vocab })
    }
}

fn gbnf(text: &str, param: &str) -> Result<String, ApiError> {
    crate::gbnf::to_lark(text).map_err(|e| ApiError::field(param, format!("a grammar: {e}")))
}

impl Compiled {
    /// A constraint for one answer.
    pub(crate) fn start(&self) -> Box<dyn Constraint> {
        let Compiled { matcher, ends, vocab } = self;
        Box::new(Masked {
            matcher: matcher.deep_clone(),
            ends: ends.clone(),
            vocab: *vocab,
            mask: None,
            ended: false,
        })
    }
}

/// The grammar of one answer, and where the answer stands in it.
struct Masked {
    matcher: Matcher,
    ends: Arc<[u32]>,
    vocab: usize,
    mask: Option<SimpleVob>,
    ended: bool,
}

impl std::fmt::Debug for Masked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masked").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Masked {
    /// Why the grammar cannot go on; its own words would hold parts of the answer.
    fn failure(&self) -> ConstraintError {
        ConstraintError(match self.matcher.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => "the grammar is too complex".into(),
            reason => format!("the grammar stopped with {reason:?}"),
        })
    }
}

impl Constraint for Masked {
    fn prepare(&mut self) -> Result<(), ConstraintError> {
        let mut mask = self.matcher.compute_mask_or_eos().map_err(|_| self.failure())?;
        if self.ends.iter().any(|end| mask.is_allowed(*end)) {
            self.ends.iter().for_each(|end| mask.allow_token(*end));
        }
        self.mask = Some(mask);
        Ok(())
    }

    fn mask(&self) -> Option<BitMask<'_>> {
        self.mask.as_ref().map(|mask| BitMask::from_words(mask.as_slice(), self.vocab))
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.ends.contains(&token) {
            self.ended = true;
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|_| self.failure())
    }

    fn is_complete(&self) -> bool {
        self.ended || self.matcher.is_stopped()
    }
}

/// A text as a sequence of a grammar: control tokens by their ids, all else as strings.
pub(crate) fn literal(tokenizer: &Tokenizer, text: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    let quoted = |text: &str| Value::from(text).to_string();
    let ids = tokenizer.encode(&[Segment::Markup(text)], false);
    for id in ids.into_iter().filter(|id| tokenizer.is_control(*id)) {
        let spelling = String::from_utf8_lossy(tokenizer.token_text(id));
        let Some((before, after)) = rest.split_once(&*spelling) else { continue };
        if !before.is_empty() {
            parts.push(quoted(before));
        }
        parts.push(format!("<[{id}]>"));
        rest = after;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(quoted(rest));
    }
    parts.join(" ")
}

/// The rule of a text that goes on until a marker, which it ends with.
pub(crate) fn until(tokenizer: &Tokenizer, name: &str, marker: &str) -> String {
    let end = literal(tokenizer, marker);
    match end.starts_with("<[") {
        true => format!("{name}: /(.|\\n)*/ {end}\n"),
        false => format!("{name}[suffix={end}]: /(.|\\n)*/\n"),
    }
}

#[cfg(test)]
impl Grammars {
    /// Grammars over a vocabulary of bytes.
    pub(crate) fn bytes() -> Grammars {
        let env = ApproximateTokEnv::single_byte_env();
        let (vocab, end) = (env.tok_trie().vocab_size(), env.tok_trie().eos_token());
        let mut factory = ParserFactory::new_simple(&env).unwrap();
        factory.quiet();
        Grammars { factory, ends: Arc::new([end]), vocab }
    }

    /// Whether an answer that follows a shape may be this text; `None` where the shape is refused.
    pub(crate) fn accepts(&self, shape: &Shape, text: &str) -> Option<bool> {
        let mut matcher = self.shape(shape, None, "test").ok()?.matcher.deep_clone();
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        let read = matcher.validate_tokens(&tokens).unwrap() == tokens.len();
        Some(read && matcher.consume_tokens(&tokens).is_ok() && matcher.is_accepting().unwrap())
    }
}
