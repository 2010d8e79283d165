//! Sampling parameters, which all endpoints share.

use serde_json::Value;
use wootz::sample::{Chain, LogitBias, SamplerKind, SamplingParams};
use wootz::{Segment, Tokenizer};

use crate::error::ApiError;
use crate::fields::{Field, Fields, Takes, field, kind};

const ANY: Takes = Takes::Number(f64::MIN, f64::MAX);
const SHARE: Takes = Takes::Number(0.0, 1.0);
const POSITIVE: Takes = Takes::Number(0.0, f64::MAX);
const WINDOW: Takes = Takes::Int(-1, i32::MAX as i64);

/// The parameters; names and meaning are llama.cpp's, those that OpenAI has are the same there.
pub(crate) const SAMPLING: &[Field] = &[
    field("seed", Takes::Int(i64::MIN, i64::MAX), "Start of the random numbers; -1 for a random one."),
    field("temperature", ANY, "Divides the logits; 0 always takes the most likely token."),
    field("top_k", Takes::Int(i32::MIN as i64, i32::MAX as i64), "Keep the most likely tokens; 0 for all."),
    field("top_p", SHARE, "Keep the most likely tokens that together reach this probability."),
    field("min_p", SHARE, "Keep tokens at least this likely, relative to the best."),
    field("typical_p", SHARE, "Keep the most typical tokens up to this probability; 1 for off."),
    field("top_n_sigma", ANY, "Keep tokens within this many deviations of the best; negative for off."),
    field("xtc_probability", SHARE, "Chance to drop the top choices."),
    field("xtc_threshold", SHARE, "Probability from which XTC takes a token for a top choice."),
    field("dynatemp_range", POSITIVE, "Half the range of a temperature that follows the entropy."),
    field("dynatemp_exponent", POSITIVE, "Exponent of the dynamic temperature."),
    field("repeat_last_n", WINDOW, "Last tokens that penalties look at; -1 for all."),
    field("repeat_penalty", POSITIVE, "Penalty on repeated tokens; 1 for none."),
    field("repetition_penalty", POSITIVE, "Another name of repeat_penalty."),
    field("frequency_penalty", ANY, "Penalty by how often a token appeared."),
    field("presence_penalty", ANY, "Penalty on tokens that appeared."),
    field("dry_multiplier", POSITIVE, "Strength of the penalty on repeated sequences (DRY); 0 for off."),
    field("dry_base", POSITIVE, "Base of the DRY penalty."),
    field("dry_allowed_length", Takes::Int(0, u32::MAX as i64), "Longest sequence that DRY lets repeat."),
    field("dry_penalty_last_n", WINDOW, "Last tokens that DRY looks at; -1 for all."),
    field("dry_sequence_breakers", Takes::Texts, "Texts that DRY does not match across."),
    field("adaptive_target", ANY, "Probability that adaptive-p steers to; negative for off."),
    field("adaptive_decay", SHARE, "Weight of the past in adaptive-p."),
    field("mirostat", Takes::Int(0, 2), "Mirostat version; 0 for off."),
    field("mirostat_tau", POSITIVE, "Surprise in bits that Mirostat steers to."),
    field("mirostat_eta", POSITIVE, "Learning rate of Mirostat."),
    field("logit_bias", Takes::Any, "Added to tokens' logits: an object or a list of pairs; false bans."),
    field("ignore_eos", Takes::Bool, "Go on where the model ends its answer."),
    field("min_keep", Takes::Int(0, u32::MAX as i64), "Tokens that filters keep at least."),
    field("samplers", Takes::Any, "Samplers in their order: a list of names, or a string of letters."),
];

/// The parameters that a request asks for, on top of the model's defaults.
pub(crate) fn params(
    fields: &Fields,
    defaults: &SamplingParams,
    tokenizer: &Tokenizer,
) -> Result<SamplingParams, ApiError> {
    let mut p = defaults.clone();
    let float = |to: &mut f32, name: &str| {
        if let Some(value) = fields.number(name) {
            *to = value as f32;
        }
    };
    float(&mut p.temperature, "temperature");
    float(&mut p.top_p, "top_p");
    float(&mut p.min_p, "min_p");
    float(&mut p.typical_p, "typical_p");
    float(&mut p.top_n_sigma, "top_n_sigma");
    float(&mut p.xtc_probability, "xtc_probability");
    float(&mut p.xtc_threshold, "xtc_threshold");
    float(&mut p.dynatemp_range, "dynatemp_range");
    float(&mut p.dynatemp_exponent, "dynatemp_exponent");
    float(&mut p.repeat_penalty, "repetition_penalty");
    float(&mut p.repeat_penalty, "repeat_penalty");
    float(&mut p.frequency_penalty, "frequency_penalty");
    float(&mut p.presence_penalty, "presence_penalty");
    float(&mut p.dry_multiplier, "dry_multiplier");
    float(&mut p.dry_base, "dry_base");
    float(&mut p.adaptive_target, "adaptive_target");
    float(&mut p.adaptive_decay, "adaptive_decay");
    float(&mut p.mirostat_tau, "mirostat_tau");
    float(&mut p.mirostat_eta, "mirostat_eta");
    let int = |to: &mut i32, name: &str| {
        if let Some(value) = fields.int(name) {
            *to = value as i32;
        }
    };
    int(&mut p.top_k, "top_k");
    int(&mut p.repeat_last_n, "repeat_last_n");
    int(&mut p.dry_penalty_last_n, "dry_penalty_last_n");
    if let Some(n) = fields.int("dry_allowed_length") {
        p.dry_allowed_length = n as u32;
    }
    if fields.has("dry_sequence_breakers") {
        p.dry_sequence_breakers = fields.texts("dry_sequence_breakers");
    }
    if let Some(version) = fields.int("mirostat") {
        p.mirostat = version as u8;
    }
    if let Some(ignore) = fields.bool("ignore_eos") {
        p.ignore_eos = ignore;
    }
    if let Some(n) = fields.count("min_keep") {
        p.min_keep = n;
    }
    if let Some(seed) = fields.int("seed") {
        // llama.cpp's -1, also as 32 bits without a sign, asks for a random one.
        p.seed = Some(seed as u64).filter(|_| seed != -1 && seed != i64::from(u32::MAX));
    }
    if let Some(value) = fields.get("samplers") {
        p.samplers = chain(value).map_err(|e| fields.wrong("samplers", e))?;
    }
    if let Some(value) = fields.get("logit_bias") {
        p.logit_bias = biases(value, tokenizer).map_err(|e| fields.wrong("logit_bias", e))?;
    }
    p.validate()?;
    Ok(p)
}

fn chain(value: &Value) -> Result<Chain, String> {
    match value {
        Value::String(text) => text.parse().map_err(|e: wootz::sample::ParamError| e.to_string()),
        Value::Array(list) => {
            let name = |v: &Value| {
                let text = v.as_str().ok_or_else(|| format!("names, found {}", kind(v)))?;
                text.parse::<SamplerKind>().map_err(|e| e.to_string())
            };
            list.iter().map(name).collect::<Result<_, _>>().map(Chain)
        }
        other => Err(format!("a list of names or a string, found {}", kind(other))),
    }
}

/// Biases as `{"ID": BIAS}` or `[[ID or TEXT, BIAS or false], …]`.
fn biases(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<LogitBias>, String> {
    let bias = |v: &Value| match v {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        Value::Number(n) => Ok(n.as_f64().unwrap_or_default() as f32),
        other => Err(format!("numbers, or false for a ban, found {}", kind(other))),
    };
    // A text stands for all of its tokens.
    let tokens = |v: &Value| match v {
        Value::Number(n) => {
            let id = n.as_u64().and_then(|id| u32::try_from(id).ok());
            id.map(|id| vec![id]).ok_or_else(|| format!("token ids, found {n}"))
        }
        Value::String(text) => Ok(tokenizer.encode(&[Segment::Text(text.as_bytes())], false)),
        other => Err(format!("token ids or texts, found {}", kind(other))),
    };
    let mut out = Vec::new();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let id = key.parse().map_err(|_| "keys that are token ids".to_owned())?;
                out.push(LogitBias { token: id, bias: bias(value)? });
            }
        }
        Value::Array(list) => {
            for item in list {
                let pair = item.as_array().filter(|pair| pair.len() == 2).ok_or("pairs of token and bias")?;
                let bias = bias(&pair[1])?;
                out.extend(tokens(&pair[0])?.into_iter().map(|token| LogitBias { token, bias }));
            }
        }
        other => return Err(format!("an object or a list of pairs, found {}", kind(other))),
    }
    Ok(out)
}
