//! Models and their defaults from a TOML file.
//!
//! ```toml
//! [models.small]
//! model = "smollm2"            # a path, a short name, or a reference
//! aliases = ["gpt-4o-mini"]
//! ctx = 4096
//! parallel = 8
//! system = "Answer in one sentence."
//! max_tokens = 512
//! truncate = true
//!
//! [models.small.sampling]
//! temperature = 0.2
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use wootz::sample::SamplingParams;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Presets {
    /// Models by the name that requests use.
    #[serde(default)]
    pub models: BTreeMap<String, ModelEntry>,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    /// A path, a short name, or a reference.
    pub model: String,
    /// Further names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Context in tokens.
    pub ctx: Option<usize>,
    /// Conversations that the cache has room for at full length.
    pub parallel: Option<usize>,
    /// Chat template in place of the file's: a name or a file.
    pub chat_template: Option<String>,
    /// A system message for conversations that have none.
    pub system: Option<String>,
    /// Tokens to generate at most.
    pub max_tokens: Option<usize>,
    /// Whether prompts that do not fit are cut where a request does not say.
    pub truncate: Option<bool>,
    /// Sampling parameters; those left out have the library's defaults.
    pub sampling: Option<SamplingParams>,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PresetsError(String);

impl Presets {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is not TOML, has an unknown field, or a value out of its range; the message has the line.
    pub fn parse(text: &str) -> Result<Presets, PresetsError> {
        let presets: Presets = toml::from_str(text).map_err(|e| PresetsError(e.to_string()))?;
        for (name, entry) in &presets.models {
            let fault = |what: String| PresetsError(format!("models.{name}.{what}"));
            if let Some(sampling) = &entry.sampling {
                sampling.validate().map_err(|e| fault(format!("sampling.{e}")))?;
            }
            for (field, value) in
                [("ctx", entry.ctx), ("parallel", entry.parallel), ("max_tokens", entry.max_tokens)]
            {
                if value == Some(0) {
                    return Err(fault(format!("{field} is 0: expected at least 1")));
                }
            }
        }
        Ok(presets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = "[models.small]\nmodel = \"smollm2\"\naliases = [\"a\"]\nctx = 512\n\
                    [models.small.sampling]\ntemperature = 0.0\nsamplers = [\"top_k\"]\n";
        let presets = Presets::parse(text).unwrap();
        let small = &presets.models["small"];
        assert_eq!((small.model.as_str(), small.ctx, small.parallel), ("smollm2", Some(512), None));
        assert_eq!(small.truncate, None);
        let sampling = small.sampling.as_ref().unwrap();
        assert_eq!((sampling.temperature, sampling.top_k), (0.0, 40));
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: &str| Presets::parse(text).unwrap_err().to_string();
        assert!(fault("[models.a]\n").contains("missing field `model`"));
        assert!(fault("[models.a]\nmodel = \"x\"\ntemp = 1\n").contains("unknown field `temp`"));
        let e = fault("[models.a]\nmodel = \"x\"\n[models.a.sampling]\ntop_p = 2.0\n");
        assert_eq!(e, "models.a.sampling.top_p is 2: expected 0 to 1");
        assert_eq!(fault("[models.a]\nmodel = \"x\"\nctx = 0\n"), "models.a.ctx is 0: expected at least 1");
    }
}
