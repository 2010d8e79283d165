//! The samplers once more, written for clearness only: full sorts, f64, the platform's functions.

use super::super::{SamplerKind, SamplingParams};

type Candidates = Vec<(u32, f64)>;

/// Tokens and probabilities after the chain, best first.
///
/// `xtc_chance` is the random number that decides whether xtc acts.
pub(super) fn run(params: &SamplingParams, logits: &[f32], history: &[u32], xtc_chance: f64) -> Candidates {
    let mut c: Candidates = logits.iter().enumerate().map(|(i, &l)| (i as u32, f64::from(l))).collect();
    for bias in &params.logit_bias {
        c[bias.token as usize].1 += f64::from(bias.bias);
    }
    c.retain(|x| x.1 > f64::NEG_INFINITY);
    for kind in &params.samplers.0 {
        sort(&mut c);
        c = match kind {
            SamplerKind::Penalties => penalties(params, c, history),
            SamplerKind::Dry => dry(params, c, history),
            SamplerKind::TopNSigma => top_n_sigma(params, c),
            SamplerKind::TopK => {
                let k = if params.top_k > 0 { params.top_k as usize } else { c.len() };
                c.into_iter().take(k).collect()
            }
            SamplerKind::TypicalP => typical(params, c),
            SamplerKind::TopP => top_p(params, c),
            SamplerKind::MinP => min_p(params, c),
            SamplerKind::Xtc => xtc(params, c, xtc_chance),
            SamplerKind::Temperature => temperature(params, c),
            SamplerKind::AdaptiveP => c,
        };
    }
    sort(&mut c);
    let probs = softmax(&c);
    c.iter().zip(probs).map(|(x, p)| (x.0, p)).collect()
}

fn sort(c: &mut Candidates) {
    c.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
}

pub(super) fn softmax(c: &Candidates) -> Vec<f64> {
    let max = c.iter().map(|x| x.1).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = c.iter().map(|x| (x.1 - max).exp()).sum();
    c.iter().map(|x| (x.1 - max).exp() / total).collect()
}

fn last(history: &[u32], n: i32) -> &[u32] {
    let n = if n < 0 { history.len() } else { (n as usize).min(history.len()) };
    &history[history.len() - n..]
}

fn penalties(params: &SamplingParams, mut c: Candidates, history: &[u32]) -> Candidates {
    let window = last(history, params.repeat_last_n);
    for (token, logit) in &mut c {
        let count = window.iter().filter(|t| *t == token).count();
        if count > 0 {
            let repeat = f64::from(params.repeat_penalty);
            *logit = if *logit <= 0.0 { *logit * repeat } else { *logit / repeat };
            *logit -= count as f64 * f64::from(params.frequency_penalty) + f64::from(params.presence_penalty);
        }
    }
    c
}

/// Without breakers.
fn dry(params: &SamplingParams, mut c: Candidates, history: &[u32]) -> Candidates {
    let window = last(history, params.dry_penalty_last_n);
    let n = window.len();
    if params.dry_multiplier == 0.0 || params.dry_base < 1.0 || n <= params.dry_allowed_length as usize {
        return c;
    }
    for (token, logit) in &mut c {
        // The longest end of the text that stands earlier with this token after it.
        let longest = (1..n)
            .filter(|&at| window[at] == *token)
            .map(|at| (1..=at).take_while(|&l| window[at - l] == window[n - l]).count())
            .max();
        let allowed = params.dry_allowed_length as usize;
        if let Some(length) = longest.filter(|&l| l >= allowed) {
            let power = f64::from(params.dry_base).powi((length - allowed) as i32);
            *logit -= f64::from(params.dry_multiplier) * power;
        }
    }
    c
}

fn top_n_sigma(params: &SamplingParams, mut c: Candidates) -> Candidates {
    if params.top_n_sigma > 0.0 && c.len() > 1 {
        let n = c.len() as f64;
        let mean = c.iter().map(|x| x.1).sum::<f64>() / n;
        let deviation = (c.iter().map(|x| (x.1 - mean).powi(2)).sum::<f64>() / n).sqrt();
        let limit = c[0].1 - f64::from(params.top_n_sigma) * deviation;
        c.retain(|x| x.1 >= limit);
    }
    c
}

fn top_p(params: &SamplingParams, c: Candidates) -> Candidates {
    if params.top_p >= 1.0 {
        return c;
    }
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for (x, p) in c.iter().zip(softmax(&c)) {
        kept.push(*x);
        sum += p;
        if sum >= f64::from(params.top_p) && kept.len() >= params.min_keep {
            break;
        }
    }
    kept
}

fn min_p(params: &SamplingParams, c: Candidates) -> Candidates {
    if params.min_p <= 0.0 {
        return c;
    }
    let probs = softmax(&c);
    let limit = f64::from(params.min_p) * probs[0];
    let stays = |i: usize| probs[i] >= limit || i < params.min_keep;
    c.iter().enumerate().filter(|(i, _)| stays(*i)).map(|(_, x)| *x).collect()
}

fn typical(params: &SamplingParams, c: Candidates) -> Candidates {
    if params.typical_p >= 1.0 {
        return c;
    }
    let probs = softmax(&c);
    let entropy: f64 = probs.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    let mut order: Vec<usize> = (0..c.len()).collect();
    let distance = |i: usize| (-probs[i].ln() - entropy).abs();
    order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for i in order {
        kept.push(c[i]);
        sum += probs[i];
        if sum > f64::from(params.typical_p) && kept.len() >= params.min_keep {
            break;
        }
    }
    kept
}

fn xtc(params: &SamplingParams, mut c: Candidates, chance: f64) -> Candidates {
    if params.xtc_threshold > 0.5 || c.len() < 2 || chance >= f64::from(params.xtc_probability) {
        return c;
    }
    let above = softmax(&c).iter().filter(|p| **p >= f64::from(params.xtc_threshold)).count();
    if above >= 2 && c.len() - (above - 1) >= params.min_keep {
        c.drain(..above - 1);
    }
    c
}

fn temperature(params: &SamplingParams, c: Candidates) -> Candidates {
    let (t, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
    let mut found = t;
    if range > 0.0 {
        if c.len() <= 1 {
            return c;
        }
        let entropy: f64 = softmax(&c).iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let evenness = entropy / (c.len() as f64).ln();
        let low = (t - range).max(0.0);
        found = low + (t + range - low) * evenness.powf(f64::from(params.dynatemp_exponent));
    }
    if found <= 0.0 {
        return vec![c[0]];
    }
    c.into_iter().map(|x| (x.0, x.1 / found)).collect()
}
