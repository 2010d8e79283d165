//! What a request may ask of the sampler.

use std::fmt;
use std::str::FromStr;

/// Longest DRY sequence breaker, in bytes.
pub const MAX_BREAKER_BYTES: usize = 40;

/// How a token is picked from the logits; names and defaults are those of llama.cpp.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct SamplingParams {
    /// Start of the random numbers; none takes one from the operating system.
    pub seed: Option<u64>,
    /// The samplers and their order.
    pub samplers: Chain,
    /// Divides the logits; 0 or less keeps only the most likely token.
    pub temperature: f32,
    /// Half the width of the range of the dynamic temperature; 0 is off.
    pub dynatemp_range: f32,
    /// How the entropy maps into the range of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the most likely tokens, this many; 0 or less is off.
    pub top_k: i32,
    /// Keeps the most likely tokens that together reach this probability; 1 is off.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the best token's probability; 0 is off.
    pub min_p: f32,
    /// Keeps the most typical tokens that together exceed this probability; 1 is off.
    pub typical_p: f32,
    /// Keeps tokens within this many standard deviations of the best logit; 0 or less is off.
    pub top_n_sigma: f32,
    /// Chance that the exclusion of top choices acts on a token; 0 is off.
    pub xtc_probability: f32,
    /// Of the tokens with at least this probability only the least likely stays; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Number of last tokens that the penalties look at; 0 is off, -1 is all of them.
    pub repeat_last_n: i32,
    /// Divides positive and multiplies other logits of tokens seen; 1 is off.
    pub repeat_penalty: f32,
    /// Taken from a token's logit for each time it was seen; 0 is off.
    pub frequency_penalty: f32,
    /// Taken from a token's logit once if it was seen; 0 is off.
    pub presence_penalty: f32,
    /// Strength of the penalty on continued repetitions (DRY); 0 is off.
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty with each repeated token; below 1 is off.
    pub dry_base: f32,
    /// Length in tokens from which a repetition is penalized by DRY.
    pub dry_allowed_length: u32,
    /// Number of last tokens that DRY looks at; 0 is off, -1 is all of them.
    pub dry_penalty_last_n: i32,
    /// Texts across which DRY sees no repetition.
    pub dry_sequence_breakers: Vec<String>,
    /// Probability that adaptive-p steers towards; negative is off.
    pub adaptive_target: f32,
    /// Weight of the past in adaptive-p's moving average.
    pub adaptive_decay: f32,
    /// Mirostat version 1 or 2, which replaces the chain; 0 is off.
    pub mirostat: u8,
    /// Surprise in bits that mirostat steers towards.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Added to logits before the chain.
    pub logit_bias: Vec<LogitBias>,
    /// Bans the tokens that end a text.
    pub ignore_eos: bool,
    /// Fewest tokens that top-p, min-p, typical-p and xtc leave.
    pub min_keep: usize,
    /// Number of most likely tokens to report; none reports nothing, 0 only the token picked.
    pub n_probs: Option<usize>,
    /// Reports probabilities as they are after the chain, not those of the model.
    pub post_sampling_probs: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            seed: None,
            samplers: Chain::default(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            ignore_eos: false,
            min_keep: 0,
            n_probs: None,
            post_sampling_probs: false,
        }
    }
}

impl SamplingParams {
    /// The parameters that always pick the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every value that can be checked without a vocabulary.
    ///
    /// # Errors
    /// The first value outside its range, with the range.
    pub fn validate(&self) -> Result<(), ParamError> {
        let finite = |field, value: f32| {
            check(value.is_finite(), field, value, "a finite number")?;
            Ok(())
        };
        let not_negative = |field, value: f32| {
            check(value.is_finite() && value >= 0.0, field, value, "a finite number of at least 0")
        };
        let share = |field, value: f32| check((0.0..=1.0).contains(&value), field, value, "0 to 1");
        let window = |field, value: i32| check(value >= -1, field, value, "-1 (all tokens) or more");

        finite("temperature", self.temperature)?;
        not_negative("dynatemp_range", self.dynatemp_range)?;
        not_negative("dynatemp_exponent", self.dynatemp_exponent)?;
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)?;
        share("typical_p", self.typical_p)?;
        finite("top_n_sigma", self.top_n_sigma)?;
        share("xtc_probability", self.xtc_probability)?;
        share("xtc_threshold", self.xtc_threshold)?;
        window("repeat_last_n", self.repeat_last_n)?;
        let repeat = self.repeat_penalty;
        check(repeat.is_finite() && repeat > 0.0, "repeat_penalty", repeat, "a finite number above 0")?;
        finite("frequency_penalty", self.frequency_penalty)?;
        finite("presence_penalty", self.presence_penalty)?;
        not_negative("dry_multiplier", self.dry_multiplier)?;
        not_negative("dry_base", self.dry_base)?;
        window("dry_penalty_last_n", self.dry_penalty_last_n)?;
        for text in &self.dry_sequence_breakers {
            let fits = (1..=MAX_BREAKER_BYTES).contains(&text.len());
            check(fits, "dry_sequence_breakers", format_args!("{text:?}"), "texts of 1 to 40 bytes")?;
        }
        let target = self.adaptive_target;
        let known = target.is_finite() && target <= 1.0;
        check(known, "adaptive_target", target, "0 to 1, or a negative number for off")?;
        let decay = self.adaptive_decay;
        check((0.0..=0.99).contains(&decay), "adaptive_decay", decay, "0 to 0.99")?;
        check(self.mirostat <= 2, "mirostat", self.mirostat, "0, 1 or 2")?;
        not_negative("mirostat_tau", self.mirostat_tau)?;
        not_negative("mirostat_eta", self.mirostat_eta)?;
        for bias in &self.logit_bias {
            let usable = bias.bias.is_finite() || bias.bias == f32::NEG_INFINITY;
            check(usable, "logit_bias", bias.bias, "a finite number, or -inf for a ban")?;
        }
        Ok(())
    }
}

/// A number added to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogitBias {
    /// The token.
    pub token: u32,
    /// What is added; negative infinity bans the token (in serialized form: null).
    #[cfg_attr(feature = "serde", serde(with = "null_is_ban"))]
    pub bias: f32,
}

/// Keeps the ban, negative infinity, in formats such as JSON that know finite numbers only.
#[cfg(feature = "serde")]
mod null_is_ban {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(bias: &f32, out: S) -> Result<S::Ok, S::Error> {
        (*bias != f32::NEG_INFINITY).then_some(*bias).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f32::NEG_INFINITY))
    }
}

/// One member of the sampler chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerKind {
    /// Repeat, frequency and presence penalties.
    Penalties,
    /// Penalty on continued repetitions ("don't repeat yourself").
    Dry,
    /// Limit in standard deviations below the best logit.
    TopNSigma,
    /// Limit on the number of tokens.
    TopK,
    /// Locally typical sampling.
    TypicalP,
    /// Nucleus sampling.
    TopP,
    /// Limit relative to the best token's probability.
    MinP,
    /// Exclusion of top choices.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Steering towards a target probability; acts last wherever it stands.
    AdaptiveP,
}

impl SamplerKind {
    /// Every member, in the default order, then the one that is off by default.
    pub const ALL: [Self; 10] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
        Self::AdaptiveP,
    ];

    /// The name that llama.cpp uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
            Self::AdaptiveP => "adaptive_p",
        }
    }

    /// The letter that llama.cpp uses.
    pub fn letter(self) -> char {
        match self {
            Self::Penalties => 'e',
            Self::Dry => 'd',
            Self::TopNSigma => 's',
            Self::TopK => 'k',
            Self::TypicalP => 'y',
            Self::TopP => 'p',
            Self::MinP => 'm',
            Self::Xtc => 'x',
            Self::Temperature => 't',
            Self::AdaptiveP => 'a',
        }
    }

    fn from_letter(letter: char) -> Result<Self, ParamError> {
        let known = Self::ALL.into_iter().find(|kind| kind.letter() == letter);
        known.ok_or_else(|| ParamError::new("samplers", letter, "letters of edskypmxta"))
    }
}

impl FromStr for SamplerKind {
    type Err = ParamError;

    /// Reads a name in any of its usual spellings.
    fn from_str(text: &str) -> Result<Self, ParamError> {
        let plain = text.trim().to_ascii_lowercase().replace('-', "_");
        let usual = match plain.as_str() {
            "nucleus" => "top_p",
            "typical_p" | "typical" | "typ" => "typ_p",
            "temp" => "temperature",
            other => other,
        };
        let expected =
            "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, adaptive_p";
        let known = Self::ALL.into_iter().find(|kind| kind.name() == usual);
        known.ok_or_else(|| ParamError::new("samplers", format_args!("{text:?}"), expected))
    }
}

/// The samplers of a request, in the order in which they act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain(pub Vec<SamplerKind>);

impl Default for Chain {
    fn default() -> Self {
        Self(SamplerKind::ALL[..9].to_vec())
    }
}

impl Chain {
    /// Reads names with `;` between them.
    ///
    /// # Errors
    /// The first unknown name.
    pub fn from_names(names: &str) -> Result<Self, ParamError> {
        let parts = names.split(';').map(str::trim).filter(|name| !name.is_empty());
        parts.map(str::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Reads one letter for each sampler, such as `edskypmxt`.
    ///
    /// # Errors
    /// The first unknown letter.
    pub fn from_letters(letters: &str) -> Result<Self, ParamError> {
        letters.trim().chars().map(SamplerKind::from_letter).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Chain {
    type Err = ParamError;

    /// Reads names with `;` between them, a single name, or letters.
    fn from_str(text: &str) -> Result<Self, ParamError> {
        match Self::from_names(text) {
            Ok(chain) => Ok(chain),
            Err(unknown) if text.contains(';') => Err(unknown),
            Err(unknown) => Self::from_letters(text).map_err(|_| unknown),
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, kind) in self.0.iter().enumerate() {
            let separator = if i > 0 { ";" } else { "" };
            write!(f, "{separator}{}", kind.name())?;
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
mod chain_serde {
    use super::{Chain, SamplerKind};
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    impl Serialize for Chain {
        fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
            out.collect_seq(self.0.iter().map(|kind| kind.name()))
        }
    }

    impl<'de> Deserialize<'de> for Chain {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_any(Names)
        }
    }

    struct Names;

    impl<'de> Visitor<'de> for Names {
        type Value = Chain;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of sampler names, or a string of names or letters")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Chain, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Chain, A::Error> {
            let mut kinds = Vec::new();
            while let Some(name) = names.next_element::<String>()? {
                kinds.push(name.parse::<SamplerKind>().map_err(A::Error::custom)?);
            }
            Ok(Chain(kinds))
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: expected {expected}")]
pub struct ParamError {
    /// Name of the parameter.
    pub field: &'static str,
    /// The value that was given.
    pub value: String,
    /// The values that are accepted.
    pub expected: String,
}

impl ParamError {
    pub(crate) fn new(field: &'static str, value: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self { field, value: value.to_string(), expected: expected.to_string() }
    }
}

fn check(
    holds: bool,
    field: &'static str,
    value: impl fmt::Display,
    expected: &str,
) -> Result<(), ParamError> {
    if holds { Ok(()) } else { Err(ParamError::new(field, value, expected)) }
}
