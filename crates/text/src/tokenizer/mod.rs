//! Tokenizers built from the vocabularies that GGUF files carry.

mod bpe;
mod merge;
mod prefix;
mod rwkv;
mod space;
mod special;
mod spm;
mod table;
#[cfg(test)]
mod tests;
mod unigram;
mod vocab;
mod wordpiece;

use std::borrow::Cow;

use wootz_gguf::Metadata;

pub use vocab::{BuildError, SpecialIds, TokenType, VocabSource};

use crate::pretokenize::{Pieces, PreTokenizer};
use bpe::{Bpe, byte_of};
use merge::Merger;
use rwkv::Rwkv;
use special::{Matcher, Roles};
use spm::Spm;
use unigram::{Charsmap, Step, Unigram};
use vocab::{Attr, Vocab, byte_token};
use wordpiece::WordPiece;

/// Values of `tokenizer.ggml.model` that can be read.
const MODELS: &[&str] = &["gpt2", "gemma4", "llama", "bert", "t5", "rwkv"];

/// Longest run of plain text that is encoded at once, so that offsets fit 32 bits after `▁` tripled it.
const LONGEST_RUN: usize = 1 << 30;

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Words of a user or a tool: no control token is recognised in them. Need not be valid UTF-8.
    Text(&'a [u8]),
    /// Markup of a template: the spelling of a control token gives that token.
    Markup(&'a str),
}

/// Turns text into token ids and back.
///
/// | `tokenizer.ggml.model` | kind |
/// |---|---|
/// | `gpt2` | byte-level BPE; `tokenizer.ggml.pre` says how text is cut first |
/// | `gemma4` | BPE on plain text with byte tokens |
/// | `llama` | SentencePiece, BPE form |
/// | `t5` | SentencePiece, unigram form |
/// | `bert` | WordPiece |
/// | `rwkv` | longest match |
///
/// Encoding takes time proportional to the text, but for the heap of candidate merges, which adds a logarithm within
/// one word; no input makes it recurse. Text that is not valid UTF-8 is encoded byte by byte where it is not.
///
/// ```
/// use wootz_text::{Segment, TokenType, Tokenizer, VocabSource};
///
/// let tokenizer = Tokenizer::new(&VocabSource {
///     model: "gpt2",
///     pre: Some("gpt-2"),
///     tokens: ["h", "i", "<|im_end|>", "hi"].map(str::as_bytes).to_vec(),
///     types: vec![TokenType::Normal, TokenType::Normal, TokenType::Control, TokenType::Normal],
///     merges: vec![b"h i"],
///     ..VocabSource::default()
/// })?;
/// let prompt = [Segment::Text(b"hi"), Segment::Markup("<|im_end|>")];
/// assert_eq!(tokenizer.encode(&prompt, true), [3, 2]);
/// assert_eq!(tokenizer.decode(&[3, 2], false), b"hi");
/// assert!(tokenizer.is_eog(2));
/// # Ok::<(), wootz_text::BuildError>(())
/// ```
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    roles: Roles,
    add_bos: bool,
    add_eos: bool,
    /// WordPiece ends texts with SEP.
    add_sep: bool,
    add_space_prefix: bool,
    control: Matcher,
    user: Matcher,
}

enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
    Rwkv(Box<Rwkv>),
}

/// Work space of one call.
#[derive(Default)]
struct Work {
    merger: Merger,
    pieces: Pieces,
    spelled: Vec<u8>,
    steps: Vec<Step>,
}

impl Tokenizer {
    /// Builds the tokenizer that a file's metadata describes; `pre` takes the place of the file's pre-tokenizer.
    ///
    /// # Errors
    /// As [`VocabSource::from_metadata`] and [`Tokenizer::new`].
    pub fn from_metadata(meta: &Metadata, pre: Option<&str>) -> Result<Tokenizer, BuildError> {
        let source = VocabSource::from_metadata(meta)?;
        Tokenizer::new(&VocabSource { pre: pre.or(source.pre), ..source })
    }

    /// Builds a tokenizer.
    ///
    /// # Errors
    /// Names the unknown model or pre-tokenizer, or the part of the vocabulary that is missing or damaged.
    pub fn new(source: &VocabSource<'_>) -> Result<Tokenizer, BuildError> {
        if !MODELS.contains(&source.model) {
            return Err(BuildError::UnknownModel { found: source.model.to_owned(), known: MODELS });
        }
        let spell = |token: &[u8]| (source.model == "rwkv").then(|| rwkv::unescape(token));
        let mut vocab = Vocab::new(source, spell)?;
        let pre = pre_tokenizer(source)?;
        let mut ids = source.special;
        let or = |id: &mut Option<u32>, default| *id = id.or(default);
        match source.model {
            "llama" => {
                or(&mut ids.bos, Some(1));
                or(&mut ids.eos, Some(2));
                or(&mut ids.unknown, Some(0));
            }
            "bert" => {
                or(&mut ids.cls, Some(101));
                or(&mut ids.bos, ids.cls);
                or(&mut ids.unknown, Some(100));
                or(&mut ids.separator, Some(102));
                or(&mut ids.padding, Some(0));
                or(&mut ids.mask, Some(103));
            }
            "t5" => {
                or(&mut ids.eos, Some(1));
                or(&mut ids.unknown, Some(2));
                or(&mut ids.padding, Some(0));
            }
            _ => {}
        }
        let roles = Roles::find(source, ids, &mut vocab);
        let ids = roles.ids;
        let (add_bos, add_eos) = match source.model {
            "llama" => (true, false),
            "bert" => (true, false),
            "t5" => (false, true),
            _ => (pre.is_some_and(|pre| pre.add_bos), false),
        };
        let plain_bpe = source.model == "gemma4";
        let add_bos = source.add_bos.unwrap_or(add_bos) || plain_bpe || source.model == "bert";
        let add_eos = source.add_eos.unwrap_or(add_eos) && source.model != "bert";
        let add_sep = source.model == "bert";
        for (wanted, id, what) in
            [(add_bos, ids.bos, "BOS"), (add_eos, ids.eos, "EOS"), (add_sep, ids.separator, "SEP")]
        {
            if wanted && id.is_none() {
                return Err(BuildError::NoSpecial { what });
            }
        }
        let add_space_prefix = source.add_space_prefix.unwrap_or(source.model == "llama");
        let model = match (source.model, pre) {
            (_, Some(pre)) => Model::Bpe(Box::new(Bpe::new(&vocab, &source.merges, pre, ids.unknown)?)),
            ("bert", _) => {
                let lowercase = source.lowercase.unwrap_or(true);
                let strip_accents = source.strip_accents.unwrap_or(lowercase);
                Model::WordPiece(Box::new(WordPiece::new(&vocab, lowercase, strip_accents, ids.unknown)))
            }
            ("t5", _) => Model::Unigram(Box::new(Unigram::new(
                &vocab,
                &source.scores,
                ids.unknown,
                Charsmap::new(&source.precompiled_charsmap)?,
                add_space_prefix,
                source.remove_extra_whitespaces,
            )?)),
            ("rwkv", _) => Model::Rwkv(Box::new(Rwkv::new(&vocab, ids.unknown))),
            _ => Model::Spm(Box::new(Spm::new(&vocab, &source.scores, ids.unknown)?)),
        };
        let markup = Attr::CONTROL.or(Attr::UNKNOWN);
        Ok(Tokenizer {
            control: Matcher::new(&vocab, markup, Attr::default()),
            user: Matcher::new(&vocab, Attr::USER, markup),
            vocab,
            model,
            roles,
            add_bos,
            add_eos,
            add_sep,
            add_space_prefix,
        })
    }

    /// Names that [`VocabSource::pre`] may have.
    pub fn pre_tokenizers() -> Vec<&'static str> {
        PreTokenizer::names()
    }

    /// Token ids of a prompt; with `add_special` also the BOS, EOS or separator tokens that the vocabulary asks for.
    ///
    /// Words merge across the borders of segments, so the result is that of the whole text, but a control token is
    /// found only where all of it is markup.
    pub fn encode(&self, segments: &[Segment<'_>], add_special: bool) -> Vec<u32> {
        let mut text = Vec::new();
        let mut markup: Vec<(usize, usize)> = Vec::new();
        for segment in segments {
            let start = text.len();
            match segment {
                Segment::Text(bytes) => text.extend_from_slice(bytes),
                Segment::Markup(part) => {
                    text.extend_from_slice(part.as_bytes());
                    match markup.last_mut() {
                        Some((_, end)) if *end == start => *end = text.len(),
                        _ => markup.push((start, text.len())),
                    }
                }
            }
        }
        let mut encoder = Encoder::new(self);
        if add_special && self.add_bos {
            encoder.out.extend(self.roles.ids.bos);
        }
        encoder.marked_up(&text, &markup);
        let mut out = encoder.out;
        if add_special {
            out.extend(self.roles.ids.separator.filter(|_| self.add_sep));
            out.extend(self.roles.ids.eos.filter(|_| self.add_eos));
        }
        out
    }

    /// Bytes of one token within a text; with `special` off, markup is empty.
    ///
    /// Empty for an id beyond the vocabulary.
    pub fn piece(&self, id: u32, special: bool) -> Cow<'_, [u8]> {
        let attr = self.vocab.attr(id);
        let text = self.vocab.table.get(id);
        if attr.is(Attr::CONTROL.or(Attr::UNKNOWN)) {
            return Cow::Borrowed(if special || self.is_visible(id) { text } else { &[] });
        }
        if attr.is(Attr::USER) {
            return Cow::Borrowed(text);
        }
        if let (true, Some(byte)) = (attr.is(Attr::BYTE), byte_token(text)) {
            return Cow::Borrowed(std::slice::from_ref(&BYTES[usize::from(byte)]));
        }
        match &self.model {
            Model::Bpe(bpe) if !bpe.pre.plain => decode_glyphs(text),
            Model::Rwkv(_) => Cow::Borrowed(text),
            _ => space::unescape(text),
        }
    }

    /// Text of a sequence of tokens; with `special` off, markup is left out.
    ///
    /// The space that encoding puts before a text is taken off again.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut strip = self.add_space_prefix || matches!(self.model, Model::WordPiece(_));
        for &id in ids {
            let piece = self.piece(id, special);
            let markup = self.vocab.attr(id).is(Attr::CONTROL.or(Attr::UNKNOWN));
            let piece = match piece.strip_prefix(b" ") {
                Some(rest) if strip && !markup => rest,
                _ => &piece,
            };
            strip &= markup;
            out.extend_from_slice(piece);
        }
        out
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Id of the token that the file spells so; byte-level BPE spells bytes in the alphabet of GPT-2 (`Ġ` is a space).
    pub fn token_to_id(&self, text: &str) -> Option<u32> {
        self.vocab.table.find(text.as_bytes())
    }

    /// A token as the file spells it, empty for an id beyond the vocabulary.
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.vocab.table.get(id)
    }

    /// Whether a token ends a generation: end of text, of a turn, of a message, by id or by a known name.
    pub fn is_eog(&self, id: u32) -> bool {
        self.roles.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens that end a generation, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.roles.end_of_generation
    }

    /// Whether a token is markup, which only [`Segment::Markup`] yields.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.attr(id).is(Attr::CONTROL)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.roles.ids.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.roles.ids.eos
    }

    /// All tokens with a role.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.roles.ids
    }

    /// Whether `encode` puts BOS before a text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `encode` puts EOS after a text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    fn is_visible(&self, id: u32) -> bool {
        self.roles.visible.binary_search(&id).is_ok()
    }
}

/// Every byte, to lend out as a slice.
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

/// The pre-tokenizer of a BPE vocabulary, none for the others.
fn pre_tokenizer(source: &VocabSource<'_>) -> Result<Option<&'static PreTokenizer>, BuildError> {
    let name = match source.model {
        "gemma4" => "gemma4",
        "gpt2" => source
            .pre
            .filter(|pre| !pre.is_empty())
            .ok_or_else(|| BuildError::NoPreTokenizer { known: PreTokenizer::names() })?,
        _ => return Ok(None),
    };
    match PreTokenizer::by_name(name) {
        Some(pre) => Ok(Some(pre)),
        None => Err(BuildError::UnknownPreTokenizer { found: name.to_owned(), known: PreTokenizer::names() }),
    }
}

/// Text of a byte-level token.
fn decode_glyphs(text: &[u8]) -> Cow<'_, [u8]> {
    if text.iter().all(|b| matches!(b, 0x21..=0x7E)) {
        return Cow::Borrowed(text);
    }
    let Ok(text) = std::str::from_utf8(text) else { return Cow::Borrowed(text) };
    let mut out = Vec::with_capacity(text.len());
    for glyph in text.chars() {
        match byte_of(glyph) {
            Some(byte) => out.push(byte),
            // No byte has this glyph; the token was added as plain text.
            None => out.extend_from_slice(glyph.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(out)
}

/// State of encoding one prompt.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    work: Work,
    out: Vec<u32>,
    /// Nothing or a special token came before.
    fresh: bool,
}

impl<'a> Encoder<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Encoder { tokenizer, work: Work::default(), out: Vec::new(), fresh: true }
    }

    /// Encodes a text whose `markup` ranges may hold control tokens.
    fn marked_up(&mut self, text: &[u8], markup: &[(usize, usize)]) {
        let mut rest = 0;
        for &(start, end) in markup {
            rest = self.cut(&self.tokenizer.control, text, (rest, start, end), Self::words);
        }
        self.words(&text[rest..]);
    }

    /// Encodes user-defined tokens and what is between them.
    fn words(&mut self, text: &[u8]) {
        let rest = self.cut(&self.tokenizer.user, text, (0, 0, text.len()), Self::run);
        self.run(&text[rest..]);
    }

    /// Appends the tokens that `matcher` finds in `start..end`, encodes what lies before each, from `rest` on, and
    /// returns where the remaining text begins.
    fn cut(
        &mut self,
        matcher: &Matcher,
        text: &[u8],
        (mut rest, start, end): (usize, usize, usize),
        between: fn(&mut Self, &[u8]),
    ) -> usize {
        let vocab = &self.tokenizer.vocab;
        let mut at = start.max(rest);
        while let Some((found, after, id)) = matcher.find(text, at, end) {
            let attr = vocab.attr(id);
            let mut before = &text[rest..found];
            if attr.is(Attr::LSTRIP) {
                before = &before[..before.len() - blanks(before.iter().rev())];
            }
            between(self, before);
            self.out.push(id);
            self.fresh = true;
            rest = after;
            if attr.is(Attr::RSTRIP) {
                rest += blanks(text[rest..].iter());
            }
            at = rest;
        }
        rest
    }

    /// Encodes text that holds no special token.
    fn run(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let mut end = text.len().min(LONGEST_RUN);
            // A stray byte has length 1, so at most three steps back find the start of a character.
            while end < text.len() && end > LONGEST_RUN - 3 && text[end] & 0xC0 == 0x80 {
                end -= 1;
            }
            let (now, later) = text.split_at(end);
            self.encode_run(now);
            self.fresh = false;
            text = later;
        }
    }

    fn encode_run(&mut self, text: &[u8]) {
        let Encoder { tokenizer, work, out, fresh } = self;
        let table = &tokenizer.vocab.table;
        match &tokenizer.model {
            Model::Bpe(bpe) => bpe.encode(table, text, work, out),
            Model::Spm(spm) => spm.encode(table, text, tokenizer.add_space_prefix && *fresh, work, out),
            Model::WordPiece(wordpiece) => wordpiece.encode(text, out),
            Model::Unigram(unigram) => unigram.encode(text, work, out),
            Model::Rwkv(rwkv) => rwkv.encode(text, out),
        }
    }
}

/// How many bytes of ASCII white space come first.
fn blanks<'a>(bytes: impl Iterator<Item = &'a u8>) -> usize {
    bytes.take_while(|b| matches!(b, b'\t'..=b'\r' | b' ')).count()
}
