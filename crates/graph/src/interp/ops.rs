//! Operations on plain slices.

use crate::cache::{BLOCK_TOKENS, CacheSpec};
use crate::op::{
    Activation, Attention, ClampedGlu, Gating, Norm, NormKind, Rope, RopeStyle, Route, SectionOrder,
};
use crate::step::StepInputs;

/// Dot product, summed in f64.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() as f32
}

pub(super) fn activate(a: Activation, x: f32) -> f32 {
    let v = f64::from(x);
    let y = match a {
        Activation::Silu => v / (1.0 + (-v).exp()),
        Activation::Gelu => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * v * (1.0 + (c * (v + 0.044715 * v * v * v)).tanh())
        }
        Activation::GeluErf => 0.5 * v * (1.0 + erf(v / std::f64::consts::SQRT_2)),
        Activation::GeluQuick => v / (1.0 + (-1.702 * v).exp()),
        Activation::Relu => v.max(0.0),
        Activation::ReluSquared => v.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-v).exp()),
    };
    y as f32
}

pub(super) fn glu_clamped(unit: ClampedGlu, gate: f32, up: f32) -> f32 {
    let (alpha, limit) = (f64::from(unit.alpha), f64::from(unit.limit));
    let (g, u) = (f64::from(gate).min(limit), f64::from(up).clamp(-limit, limit));
    (g / (1.0 + (-alpha * g).exp()) * (u + 1.0)) as f32
}

/// `x + (y - x) * m`, where m is the sum of what there is.
pub(super) fn lerp(x: &[f32], y: &[f32], m: Option<&[f32]>, row: Option<&[f32]>) -> Vec<f32> {
    let cols = row.map_or(1, <[f32]>::len);
    let by = |i: usize| m.map_or(0.0, |m| f64::from(m[i])) + row.map_or(0.0, |row| f64::from(row[i % cols]));
    let between = |(i, (x, y)): (usize, (&f32, &f32))| {
        let (x, y) = (f64::from(*x), f64::from(*y));
        (x + (y - x) * by(i)) as f32
    };
    x.iter().zip(y).enumerate().map(between).collect()
}

/// `v` times a score of each head.
pub(super) fn bonus(a: &[f32], b: &[f32], v: &[f32], weight: &[f32], heads: usize) -> Vec<f32> {
    let n = weight.len() / heads;
    let mut y = Vec::with_capacity(v.len());
    for head in 0..v.len() / n {
        let own = head * n..(head + 1) * n;
        let factors = &weight[head % heads * n..][..n];
        let terms = a[own.clone()].iter().zip(&b[own.clone()]).zip(factors);
        let score: f64 = terms.map(|((a, b), w)| f64::from(*a) * f64::from(*b) * f64::from(*w)).sum();
        y.extend(v[own].iter().map(|v| (f64::from(*v) * score) as f32));
    }
    y
}

/// The error function: its Taylor series near 0, its continued fraction further out.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let y = if a < 2.5 {
        let mut term = a;
        let mut sum = a;
        for n in 1..80 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        let mut tail = 0.0;
        for n in (1..60).rev() {
            tail = f64::from(n) / 2.0 / (a + tail);
        }
        1.0 - (-a * a).exp() / (std::f64::consts::PI.sqrt() * (a + tail))
    };
    y.copysign(x)
}

pub(super) fn norm(
    x: &[f32],
    cols: usize,
    n: &Norm,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let part = cols / n.groups as usize;
    let mut y = Vec::with_capacity(x.len());
    for group in x.chunks_exact(part) {
        let mean = match n.kind {
            NormKind::Rms | NormKind::L2 => 0.0,
            NormKind::Layer => group.iter().map(|v| f64::from(*v)).sum::<f64>() / part as f64,
        };
        let squares = group.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
        let divisor = match n.kind {
            NormKind::Rms | NormKind::Layer => (squares / part as f64 + f64::from(n.eps)).sqrt(),
            NormKind::L2 => squares.sqrt().max(f64::from(n.eps)),
        };
        for (i, v) in group.iter().enumerate() {
            let w = weight.map_or(1.0, |w| w[i]);
            let b = bias.map_or(0.0, |b| b[i]);
            y.push(((f64::from(*v) - mean) / divisor) as f32 * w + b);
        }
    }
    y
}

/// Which stream of positions turns each pair, and the number of the pair that its frequency is that of.
fn rope_pairs(r: &Rope) -> Vec<(usize, f64)> {
    let pairs = r.dims as usize / 2;
    let Some(sections) = r.sections else { return (0..pairs).map(|i| (0, i as f64)).collect() };
    let counts = sections.counts.map(|count| count as usize);
    let one_round: Vec<(usize, usize)> = match sections.order {
        SectionOrder::Runs | SectionOrder::Vision => {
            (0..4).flat_map(|stream| (0..counts[stream]).map(move |j| (stream, j))).collect()
        }
        SectionOrder::Interleaved => (0..counts.iter().sum())
            .map(|i| (0..3).find(|s| i % 3 == *s && i < 3 * counts[*s]).map_or((3, i), |s| (s, i)))
            .collect(),
    };
    let frequency = |i: usize, j: usize| match sections.order {
        SectionOrder::Vision => 2.0 * j as f64,
        SectionOrder::Runs | SectionOrder::Interleaved => i as f64,
    };
    one_round.iter().cycle().take(pairs).enumerate().map(|(i, (s, j))| (*s, frequency(i, *j))).collect()
}

/// Angle of pair `i` at `position`, with the magnitude that YaRN gives it; its frequency is that of pair `number`.
fn rope_angle(r: &Rope, factors: Option<&[f32]>, position: i32, i: usize, number: f64) -> (f64, f64) {
    let dims = f64::from(r.dims);
    let mut plain = f64::from(position) * f64::from(r.freq_base).powf(-2.0 * number / dims);
    if let Some(f) = factors {
        plain /= f64::from(f[i]);
    }
    let scaled = plain * f64::from(r.freq_scale);
    let Some(yarn) = r.yarn else { return (scaled, f64::from(r.magnitude)) };
    // The dimension at which a wave makes `beta` turns within the original context.
    let turn = |beta: f32| {
        let waves = f64::from(yarn.original_context) / (f64::from(beta) * 2.0 * std::f64::consts::PI);
        dims * waves.ln() / (2.0 * f64::from(r.freq_base).ln())
    };
    let low = turn(yarn.beta_fast).floor().max(0.0);
    let high = turn(yarn.beta_slow).ceil().min(dims - 1.0);
    let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
    let mix = ramp * f64::from(yarn.ext_factor);
    let magnitude = f64::from(r.magnitude)
        * if yarn.ext_factor != 0.0 { 1.0 + 0.1 * (1.0 / f64::from(r.freq_scale)).ln() } else { 1.0 };
    (scaled * (1.0 - mix) + plain * mix, magnitude)
}

pub(super) fn rope(x: &[f32], positions: &[i32], r: &Rope, factors: Option<&[f32]>) -> Vec<f32> {
    let mut y = x.to_vec();
    let (head, half) = (r.head_dim as usize, r.dims as usize / 2);
    let cols = head * r.heads as usize;
    let streams = if r.sections.is_some() { 4 } else { 1 };
    let pairs = rope_pairs(r);
    for (row, positions) in y.chunks_exact_mut(cols).zip(positions.chunks_exact(streams)) {
        for (i, (stream, number)) in pairs.iter().enumerate() {
            let (angle, magnitude) = rope_angle(r, factors, positions[*stream], i, *number);
            let (sin, cos) = (angle.sin() * magnitude, angle.cos() * magnitude);
            let (a, b) = match r.style {
                RopeStyle::Adjacent => (2 * i, 2 * i + 1),
                RopeStyle::Halves => (i, i + half),
            };
            for h in row.chunks_exact_mut(head) {
                let (p, q) = (f64::from(h[a]), f64::from(h[b]));
                h[a] = (p * cos - q * sin) as f32;
                h[b] = (p * sin + q * cos) as f32;
            }
        }
    }
    y
}

/// Keys and values of one cache, by physical slot.
pub(super) struct CacheView<'a> {
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) spec: &'a CacheSpec,
}

pub(super) fn attention(
    q: &[f32],
    a: &Attention,
    sinks: Option<&[f32]>,
    cache: &CacheView<'_>,
    inputs: &StepInputs<'_>,
) -> Vec<f32> {
    let (heads, kv_heads) = (a.heads as usize, cache.spec.kv_heads as usize);
    let (kd, vd) = (cache.spec.k_dim as usize, cache.spec.v_dim as usize);
    let group = &inputs.groups[cache.spec.group as usize];
    let mut out = Vec::with_capacity(q.len() / kd * vd);
    for (t, row) in q.chunks_exact(heads * kd).enumerate() {
        let (sequence, position) = (inputs.sequences[t], inputs.positions[t] as usize);
        let end = if a.causal {
            position + 1
        } else {
            let mine = inputs.sequences.iter().zip(inputs.positions).filter(|(s, _)| **s == sequence);
            mine.map(|(_, p)| *p as usize + 1).max().unwrap_or(0)
        };
        let start = a.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
        let slots: Vec<usize> = (start..end)
            .filter_map(|p| group.slot(sequence, p))
            .map(|(block, at)| block as usize * BLOCK_TOKENS + at)
            .collect();
        for (h, qh) in row.chunks_exact(kd).enumerate() {
            let kv = h / (heads / kv_heads);
            let scores: Vec<f64> = slots
                .iter()
                .map(|s| {
                    let score =
                        f64::from(dot(qh, &cache.k[(s * kv_heads + kv) * kd..][..kd])) * f64::from(a.scale);
                    a.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                })
                .collect();
            let sink = sinks.map(|s| f64::from(s[h]));
            let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
            for d in 0..vd {
                let values = slots.iter().map(|s| f64::from(cache.v[(s * kv_heads + kv) * vd + d]));
                out.push((values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / sum) as f32);
            }
        }
    }
    out
}

/// Chosen experts by falling score (the lower number first among equals), and their weights.
pub(super) fn route(scores: &[f32], experts: usize, r: &Route, bias: Option<&[f32]>) -> (Vec<i32>, Vec<f32>) {
    let used = r.used as usize;
    let (mut ids, mut out) = (Vec::new(), Vec::new());
    for row in scores.chunks_exact(experts) {
        let softmax = |list: &[f64]| -> Vec<f64> {
            let max = list.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = list.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.iter().map(|x| x / sum).collect()
        };
        let raw: Vec<f64> = row.iter().map(|s| f64::from(*s)).collect();
        let gates = match r.gating {
            Gating::Softmax => softmax(&raw),
            Gating::Sigmoid => raw.iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect(),
            Gating::SoftmaxChosen => raw.clone(),
        };
        let choice = |e: usize| gates[e] + bias.map_or(0.0, |b| f64::from(b[e]));
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| choice(*b).total_cmp(&choice(*a)));
        let chosen = &order[..used];
        let mut weights: Vec<f64> = chosen.iter().map(|e| gates[*e]).collect();
        if r.gating == Gating::SoftmaxChosen {
            weights = softmax(&weights);
        }
        if r.normalize {
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        ids.extend(chosen.iter().map(|e| *e as i32));
        out.extend(weights.iter().map(|w| (w * f64::from(r.scale)) as f32));
    }
    (ids, out)
}
