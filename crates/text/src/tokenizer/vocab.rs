//! What a tokenizer is built from, and the table of its tokens.

use wootz_gguf::{Metadata, Value};

use super::table::ByteTable;

/// Error of building a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A metadata value is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] wootz_gguf::Error),
    /// `tokenizer.ggml.model` names no known kind of tokenizer.
    #[error("unknown tokenizer model {found:?}; known: {}", .known.join(", "))]
    UnknownModel {
        /// The name in the file.
        found: String,
        /// The names that can be read.
        known: &'static [&'static str],
    },
    /// `tokenizer.ggml.pre` names no known pre-tokenizer.
    #[error("unknown pre-tokenizer {found:?}; choose one with --pretokenizer: {}", .known.join(", "))]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
        /// The names that can be chosen.
        known: Vec<&'static str>,
    },
    /// A BPE vocabulary without `tokenizer.ggml.pre`.
    #[error("the file names no pre-tokenizer; choose one with --pretokenizer (\"default\" suits most old files): {}", .known.join(", "))]
    NoPreTokenizer {
        /// The names that can be chosen.
        known: Vec<&'static str>,
    },
    /// A part of the vocabulary is absent.
    #[error("the tokenizer has no {what}")]
    Missing {
        /// The part, in words.
        what: &'static str,
    },
    /// A list that goes with the tokens has another length.
    #[error("{what}: {found} entries for {expected} tokens")]
    Length {
        /// The list, by its metadata key.
        what: &'static str,
        /// Entries in the list.
        found: usize,
        /// Tokens in the vocabulary.
        expected: usize,
    },
    /// A merge that is not two strings with a space between.
    #[error("merge {index} is not two tokens with a space between: {merge:?}")]
    Merge {
        /// Position in `tokenizer.ggml.merges`.
        index: usize,
        /// The entry, invalid UTF-8 replaced.
        merge: String,
    },
    /// BOS, EOS or SEP is to be added to texts, but the vocabulary has no such token.
    #[error("{what} is to be added to texts, but the file names no such token")]
    NoSpecial {
        /// The token's role.
        what: &'static str,
    },
    /// The normalization table is damaged.
    #[error("tokenizer.ggml.precompiled_charsmap: {what}")]
    Charsmap {
        /// What is wrong, in words.
        what: &'static str,
    },
    /// More tokens or bytes than a vocabulary can hold.
    #[error("the vocabulary is too large: {tokens} tokens")]
    TooLarge {
        /// Tokens in the vocabulary.
        tokens: usize,
    },
}

/// Kind of a token, as `tokenizer.ggml.token_type` numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenType {
    /// Any value the format does not define.
    #[default]
    Undefined = 0,
    /// Ordinary text.
    Normal = 1,
    /// Stands for text that the vocabulary cannot spell.
    Unknown = 2,
    /// Markup such as BOS or a turn separator.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// Reserved.
    Unused = 5,
    /// One byte, written `<0xXX>`.
    Byte = 6,
}

impl From<i32> for TokenType {
    fn from(value: i32) -> Self {
        match value {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Undefined,
        }
    }
}

/// Ids of the tokens that have a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unknown: Option<u32>,
    pub separator: Option<u32>,
    pub padding: Option<u32>,
    pub cls: Option<u32>,
    pub mask: Option<u32>,
    pub fim_prefix: Option<u32>,
    pub fim_suffix: Option<u32>,
    pub fim_middle: Option<u32>,
    pub fim_pad: Option<u32>,
    pub fim_repository: Option<u32>,
    pub fim_separator: Option<u32>,
}

/// The parts of a vocabulary, borrowed from a file.
#[derive(Clone, Debug, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2`, `gemma4`, `llama`, `bert`, `t5` or `rwkv`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`, or the user's choice in its place; only BPE needs it.
    pub pre: Option<&'a str>,
    /// `general.name`.
    pub name: &'a str,
    /// `general.architecture`.
    pub architecture: &'a str,
    /// Text of each token, in the file's own spelling.
    pub tokens: Vec<&'a [u8]>,
    /// One score per token, or none at all.
    pub scores: Vec<f32>,
    /// One type per token, or none at all (then all are normal).
    pub types: Vec<TokenType>,
    /// Pairs with a space between, the best first.
    pub merges: Vec<&'a [u8]>,
    /// Tokens with a role.
    pub special: SpecialIds,
    /// Whether texts begin with BOS.
    pub add_bos: Option<bool>,
    /// Whether texts end with EOS.
    pub add_eos: Option<bool>,
    /// Whether a space goes before the text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces become one (Unigram).
    pub remove_extra_whitespaces: bool,
    /// Normalization table (Unigram), empty if there is none.
    pub precompiled_charsmap: Vec<u8>,
    /// Whether text is put in lower case (WordPiece); default true.
    pub lowercase: Option<bool>,
    /// Whether accents are removed (WordPiece); default as `lowercase`.
    pub strip_accents: Option<bool>,
}

impl<'a> VocabSource<'a> {
    /// Takes the vocabulary out of a file's metadata.
    ///
    /// # Errors
    /// Names the key that is missing or has another type than it should.
    pub fn from_metadata(meta: &'a Metadata) -> Result<VocabSource<'a>, BuildError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let flag = |name| meta.opt_bool(&key(name));
        let text = |name| meta.opt_str(name).map(|text| text.unwrap_or_default());
        let strings = |name| -> Result<Vec<&'a [u8]>, BuildError> {
            let strings = meta.opt_strings(&key(name))?;
            Ok(strings.map(|all| all.iter().map(|text| text.as_bytes()).collect()).unwrap_or_default())
        };
        // Some writers put a negative number where there is no such token.
        let id = |names: &[&str]| -> Result<Option<u32>, BuildError> {
            for name in names {
                if let Some(id) = meta.opt_i64(&key(&format!("{name}_token_id")))? {
                    return Ok(u32::try_from(id).ok());
                }
            }
            Ok(None)
        };
        let types = meta.opt_i32s(&key("token_type"))?.unwrap_or_default();
        Ok(VocabSource {
            model: meta.str(&key("model"))?,
            pre: meta.opt_str(&key("pre"))?,
            name: text("general.name")?,
            architecture: text("general.architecture")?,
            tokens: strings("tokens")?,
            scores: scores(meta, &key("scores"))?,
            types: types.into_iter().map(TokenType::from).collect(),
            merges: strings("merges")?,
            special: SpecialIds {
                bos: id(&["bos"])?,
                eos: id(&["eos"])?,
                eot: id(&["eot"])?,
                eom: id(&["eom"])?,
                unknown: id(&["unknown"])?,
                separator: id(&["seperator", "separator"])?,
                padding: id(&["padding"])?,
                cls: id(&["cls"])?,
                mask: id(&["mask"])?,
                fim_prefix: id(&["fim_pre", "prefix"])?,
                fim_suffix: id(&["fim_suf", "suffix"])?,
                fim_middle: id(&["fim_mid", "middle"])?,
                fim_pad: id(&["fim_pad"])?,
                fim_repository: id(&["fim_rep"])?,
                fim_separator: id(&["fim_sep"])?,
            },
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
            precompiled_charsmap: charsmap(meta, &key("precompiled_charsmap"))?,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
        })
    }
}

/// Scores, which some writers store as whole numbers.
fn scores(meta: &Metadata, key: &str) -> Result<Vec<f32>, BuildError> {
    let whole = meta.get(key).and_then(|v| v.as_array()?.get(0)?.as_integer()).is_some();
    if whole {
        return Ok(meta.i32s(key)?.into_iter().map(|score| score as f32).collect());
    }
    Ok(meta.opt_f32s(key)?.unwrap_or_default())
}

/// The normalization table; the bytes may be signed.
fn charsmap(meta: &Metadata, key: &str) -> Result<Vec<u8>, BuildError> {
    let Some(array) = meta.get(key).and_then(|value| value.as_array()) else { return Ok(Vec::new()) };
    let byte = |value| match value {
        Value::U8(byte) => Some(byte),
        Value::I8(byte) => Some(byte as u8),
        _ => None,
    };
    array.iter().map(byte).collect::<Option<_>>().ok_or(BuildError::Charsmap { what: "no array of bytes" })
}

/// Properties of one token.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Attr(u8);

impl Attr {
    pub(crate) const NORMAL: Attr = Attr(1);
    pub(crate) const UNKNOWN: Attr = Attr(1 << 1);
    pub(crate) const CONTROL: Attr = Attr(1 << 2);
    pub(crate) const USER: Attr = Attr(1 << 3);
    pub(crate) const UNUSED: Attr = Attr(1 << 4);
    pub(crate) const BYTE: Attr = Attr(1 << 5);
    /// White space before the token belongs to it.
    pub(crate) const LSTRIP: Attr = Attr(1 << 6);
    /// White space after the token belongs to it.
    pub(crate) const RSTRIP: Attr = Attr(1 << 7);

    pub(crate) const fn or(self, other: Attr) -> Attr {
        Attr(self.0 | other.0)
    }
    pub(crate) fn is(self, any: Attr) -> bool {
        self.0 & any.0 != 0
    }
    pub(crate) fn set(&mut self, flags: Attr) {
        self.0 |= flags.0;
    }
    pub(crate) fn clear(&mut self, flags: Attr) {
        self.0 &= !flags.0;
    }
}

impl From<TokenType> for Attr {
    fn from(kind: TokenType) -> Attr {
        match kind {
            TokenType::Undefined | TokenType::Normal => Attr::NORMAL,
            TokenType::Unknown => Attr::UNKNOWN,
            TokenType::Control => Attr::CONTROL,
            TokenType::UserDefined => Attr::USER,
            TokenType::Unused => Attr::UNUSED,
            TokenType::Byte => Attr::BYTE,
        }
    }
}

/// The tokens: text and properties by id, id by text.
pub(crate) struct Vocab {
    pub(crate) table: ByteTable,
    pub(crate) attrs: Vec<Attr>,
}

impl Vocab {
    /// Copies the tokens, spelled by `spell`.
    pub(crate) fn new(
        source: &VocabSource<'_>,
        spell: impl Fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<Vocab, BuildError> {
        let tokens = source.tokens.len();
        if tokens == 0 {
            return Err(BuildError::Missing { what: "tokens" });
        }
        for (what, found) in [
            ("tokenizer.ggml.scores", source.scores.len()),
            ("tokenizer.ggml.token_type", source.types.len()),
        ] {
            if found != 0 && found != tokens {
                return Err(BuildError::Length { what, found, expected: tokens });
            }
        }
        let bytes = source.tokens.iter().map(|t| t.len()).sum();
        let mut table = ByteTable::with_capacity(tokens, bytes);
        for token in &source.tokens {
            let spelled = spell(token);
            table.push(spelled.as_deref().unwrap_or(token)).ok_or(BuildError::TooLarge { tokens })?;
        }
        let attrs = if source.types.is_empty() {
            // Old files give no types; byte tokens show by their spelling.
            let kind = |t: &&[u8]| if byte_token(t).is_some() { Attr::BYTE } else { Attr::NORMAL };
            source.tokens.iter().map(kind).collect()
        } else {
            source.types.iter().map(|&kind| Attr::from(kind)).collect()
        };
        Ok(Vocab { table, attrs })
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn attr(&self, id: u32) -> Attr {
        self.attrs.get(id as usize).copied().unwrap_or_default()
    }

    /// Ids of the tokens with one of the properties, ascending.
    pub(crate) fn with(&self, any: Attr) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.attrs).filter(move |(_, attr)| attr.is(any)).map(|(id, _)| id)
    }

    /// The token of each byte by its spelling `<0xXX>`.
    pub(crate) fn byte_tokens(&self) -> [Option<u32>; 256] {
        std::array::from_fn(|byte| self.table.find(format!("<0x{byte:02X}>").as_bytes()))
    }
}

/// The byte that `<0xXX>` stands for.
pub(crate) fn byte_token(token: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = token else { return None };
    let digit = |&c: &u8| char::from(c).to_digit(16).map(|d| d as u8);
    Some(digit(high)? * 16 + digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_byte_tokens() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        assert_eq!(byte_token(b"<0xff>"), Some(255));
        assert_eq!(byte_token(b"<0xG0>"), None);
        assert_eq!(byte_token(b"<0x0A"), None);
    }

    #[test]
    fn refuses_lists_of_another_length() {
        let mut source = VocabSource { tokens: vec![b"a", b"b"], ..VocabSource::default() };
        assert!(matches!(
            Vocab::new(&VocabSource::default(), |_| None),
            Err(BuildError::Missing { what: "tokens" })
        ));
        source.scores = vec![0.0];
        assert!(matches!(
            Vocab::new(&source, |_| None),
            Err(BuildError::Length { found: 1, expected: 2, .. })
        ));
        source.scores = vec![0.0, 1.0];
        source.types = vec![TokenType::Normal; 3];
        assert!(matches!(
            Vocab::new(&source, |_| None),
            Err(BuildError::Length { found: 3, expected: 2, .. })
        ));
    }
}
