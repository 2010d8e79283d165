//! What llama.cpp's own samplers left of the same logits; `golden/llama_cpp.cpp` says how it was recorded.

use super::super::{Chain, Sampler, SamplingParams};
use super::{assert_same, off, sampler};

const RECORD: &str = include_str!("golden/llama_cpp.txt");

/// Sets the parameters of a `case` line.
fn params_of(line: &str) -> SamplingParams {
    let mut params = off();
    for word in line.split(' ').skip(1) {
        let (name, text) = word.split_once('=').unwrap();
        let number = || text.parse::<f32>().unwrap();
        match name {
            "chain" => match text {
                "t1" | "t2" => params.mirostat = if text == "t1" { 1 } else { 2 },
                letters => params.samplers = Chain::from_letters(letters).unwrap(),
            },
            "min_keep" => params.min_keep = text.parse().unwrap(),
            "temperature" => params.temperature = number(),
            "dynatemp_range" => params.dynatemp_range = number(),
            "dynatemp_exponent" => params.dynatemp_exponent = number(),
            "top_k" => params.top_k = text.parse().unwrap(),
            "top_p" => params.top_p = number(),
            "min_p" => params.min_p = number(),
            "typical_p" => params.typical_p = number(),
            "top_n_sigma" => params.top_n_sigma = number(),
            "xtc_probability" => params.xtc_probability = number(),
            "xtc_threshold" => params.xtc_threshold = number(),
            "repeat_last_n" => params.repeat_last_n = text.parse().unwrap(),
            "repeat_penalty" => params.repeat_penalty = number(),
            "frequency_penalty" => params.frequency_penalty = number(),
            "presence_penalty" => params.presence_penalty = number(),
            "dry_multiplier" => params.dry_multiplier = number(),
            "dry_base" => params.dry_base = number(),
            "dry_allowed_length" => params.dry_allowed_length = text.parse().unwrap(),
            "dry_penalty_last_n" => params.dry_penalty_last_n = text.parse().unwrap(),
            "adaptive_target" => params.adaptive_target = number(),
            "adaptive_decay" => params.adaptive_decay = number(),
            "mirostat_tau" => params.mirostat_tau = number(),
            "mirostat_eta" => params.mirostat_eta = number(),
            other => panic!("unknown parameter {other}"),
        }
    }
    params.dry_sequence_breakers.clear();
    params
}

fn numbers<T: std::str::FromStr<Err: std::fmt::Debug>>(line: &str) -> Vec<T> {
    line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect()
}

/// The probability of a token that steering samplers learn from: before adaptive-p, after mirostat.
fn learned(ours: &mut Sampler, history: &[u32], logits: &[f32], token: u32) -> f64 {
    let params = ours.params().clone();
    let mut source = ours.clone();
    if params.mirostat == 0 {
        source = sampler(SamplingParams { adaptive_target: -1.0, ..params }, logits.len());
        history.iter().for_each(|&token| source.accept(token));
    }
    let found = source.distribution(logits, None).unwrap();
    f64::from(found.iter().find(|t| t.token == token).unwrap().logprob).exp()
}

#[test]
fn every_sampler_leaves_what_llama_cpp_leaves() {
    let mut lines = RECORD.lines().peekable();
    let mut steps = 0;
    while let Some(case) = lines.next() {
        let params = params_of(case);
        let mut history: Vec<u32> = numbers(lines.next().unwrap());
        let mut ours: Option<Sampler> = None;
        while lines.peek().is_some_and(|line| line.starts_with("logits")) {
            let logits: Vec<f32> = numbers(lines.next().unwrap());
            let left: Vec<String> = numbers(lines.next().unwrap());
            let left = left.iter().map(|word| word.split_once(':').unwrap());
            let wanted: Vec<(u32, f64)> =
                left.map(|(token, prob)| (token.parse().unwrap(), prob.parse().unwrap())).collect();
            let picked = numbers::<i64>(lines.next().unwrap())[0];

            let ours = ours.get_or_insert_with(|| {
                let mut fresh = sampler(params.clone(), logits.len());
                history.iter().for_each(|&token| fresh.accept(token));
                fresh
            });
            assert_same(&ours.distribution(&logits, None).unwrap(), &wanted, &case);
            steps += 1;
            if let Ok(token) = u32::try_from(picked) {
                let prob = learned(ours, &history, &logits, token);
                ours.steer.picked(token, prob);
                ours.accept(token);
                history.push(token);
            }
        }
    }
    assert_eq!(steps, 192, "steps in the record");
}
