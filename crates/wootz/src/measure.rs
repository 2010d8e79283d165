//! Speed of prompts and generation, and where the time goes.

use std::time::{Duration, Instant};

use wootz_graph::{Picked, Sampling, StepCounts, cost};

pub use wootz_graph::DeviceLimits as Limits;

use crate::context::{Context, Picking, RowsWanted, SequenceId, StepPart};
use crate::error::Error;

/// What is measured: a prompt, or a generation token by token, after `depth` tokens that are in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt of each sequence.
    pub prompt: usize,
    /// Tokens that each sequence generates.
    pub generate: usize,
    /// Tokens of each sequence in the cache before.
    pub depth: usize,
    /// Sequences; their prompts are computed one after the other, their tokens are generated side by side.
    pub sequences: usize,
}

impl Test {
    /// The customary name, such as `pp512` or `tg128 @ d4096`; of eight sequences `tg128 x8`.
    pub fn name(&self) -> String {
        let mut name = String::new();
        if self.prompt > 0 {
            name.push_str(&format!("pp{}", self.prompt));
        }
        if self.generate > 0 {
            name.push_str(&format!("{}tg{}", if name.is_empty() { "" } else { "+" }, self.generate));
        }
        if self.sequences > 1 {
            name.push_str(&format!(" x{}", self.sequences));
        }
        if self.depth > 0 {
            name.push_str(&format!(" @ d{}", self.depth));
        }
        name
    }

    /// Positions of the context that each sequence needs.
    pub fn positions(&self) -> usize {
        self.prompt + self.generate + self.depth
    }

    /// Tokens whose computation is timed, of all sequences.
    fn timed_tokens(&self) -> usize {
        self.sequences * (self.prompt + self.generate)
    }
}

/// Results of a test.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was measured.
    pub test: Test,
    /// Tokens per second of each repeat, all sequences together.
    pub speeds: Vec<f64>,
    /// Time to the first token of the last repeat, with the prompt's tokens, the cached ones not.
    pub first_token: Duration,
    /// Mean time of the host until a generated token's step is queued on the device, in the last repeat; `None` where the
    /// device does not pick tokens, so that steps cannot be queued ahead. Where it does, the step before runs meanwhile.
    pub submit: Option<Duration>,
    /// A checksum of the tokens that the model found most likely, so that a fast wrong answer shows.
    pub checksum: u64,
}

impl Measured {
    /// Mean of the repeats.
    pub fn mean(&self) -> f64 {
        self.speeds.iter().sum::<f64>() / self.speeds.len() as f64
    }

    /// Standard deviation of the repeats, 0 for a single one.
    pub fn deviation(&self) -> f64 {
        let n = self.speeds.len() as f64;
        let mean = self.mean();
        let squares: f64 = self.speeds.iter().map(|s| (s - mean).powi(2)).sum();
        if n < 2.0 { 0.0 } else { (squares / (n - 1.0)).sqrt() }
    }

    /// Median of the repeats.
    pub fn median(&self) -> f64 {
        let mut sorted = self.speeds.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n.is_multiple_of(2) { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 } else { sorted[n / 2] }
    }
}

/// Runs a test several times, after a run that warms up. The time includes finding the most likely token of each step,
/// but neither tokenization nor any other sampling.
///
/// # Errors
/// The context is too small, or a step fails.
pub fn measure(context: &mut Context, test: Test, repeats: usize, warmup: bool) -> Result<Measured, Error> {
    let mut measured =
        Measured { test, speeds: Vec::new(), first_token: Duration::ZERO, submit: None, checksum: 0 };
    for round in 0..repeats + usize::from(warmup) {
        let run = once(context, test)?;
        measured.first_token = run.first_token;
        measured.submit = run.submit;
        measured.checksum = run.checksum;
        if !(warmup && round == 0) {
            measured.speeds.push(test.timed_tokens() as f64 / run.time.as_secs_f64());
        }
    }
    Ok(measured)
}

struct Run {
    time: Duration,
    first_token: Duration,
    submit: Option<Duration>,
    checksum: u64,
}

fn once(context: &mut Context, test: Test) -> Result<Run, Error> {
    let mut sequences = Vec::new();
    let result = (|| {
        for _ in 0..test.sequences {
            sequences.push(context.open_prefix(&[])?.0);
        }
        timed(context, test, &sequences)
    })();
    for sequence in sequences {
        context.close(sequence);
    }
    result
}

fn timed(context: &mut Context, test: Test, sequences: &[SequenceId]) -> Result<Run, Error> {
    let vocab = context.model().arch().hparams().vocab;
    let mut text = Text(0);
    for sequence in sequences {
        let depth: Vec<u32> = (0..test.depth).map(|_| text.next(vocab)).collect();
        feed(context, *sequence, &depth, false)?;
    }
    let mut checksum = Checksum::default();
    let start = Instant::now();
    let (mut first_token, mut submits) = (None, Vec::new());
    for sequence in sequences {
        let prompt: Vec<u32> = (0..test.prompt).map(|_| text.next(vocab)).collect();
        if let Some(best) = feed(context, *sequence, &prompt, true)? {
            checksum.add(best);
            first_token.get_or_insert_with(|| start.elapsed());
        }
    }
    // Where the device picks tokens, a step is queued while the one before is under way, as for answers.
    let mut under_way = None;
    for _ in 0..test.generate {
        // The inputs do not follow the outputs: all engines then compute the same.
        let inputs: Vec<u32> = sequences.iter().map(|_| text.next(vocab)).collect();
        let parts: Vec<StepPart<'_>> = sequences
            .iter()
            .zip(&inputs)
            .map(|(sequence, token)| StepPart {
                sequence: *sequence,
                tokens: std::slice::from_ref(token),
                rows: RowsWanted::Last,
            })
            .collect();
        let queueing = Instant::now();
        match start_greedy(context, &parts) {
            Ok(Some(picking)) => {
                submits.push(queueing.elapsed());
                if let Some(before) = under_way.replace(picking) {
                    tokens_of(context, before)?.into_iter().for_each(|best| checksum.add(best));
                    first_token.get_or_insert_with(|| start.elapsed());
                }
            }
            Ok(None) => {
                let output = context.step(&parts)?;
                (0..parts.len()).for_each(|row| checksum.add(largest(output.row(row))));
                first_token.get_or_insert_with(|| start.elapsed());
            }
            Err(e) => {
                if let Some(before) = under_way {
                    context.abandon(before);
                }
                return Err(e);
            }
        }
    }
    if let Some(last) = under_way {
        tokens_of(context, last)?.into_iter().for_each(|best| checksum.add(best));
        first_token.get_or_insert_with(|| start.elapsed());
    }
    let time = start.elapsed();
    let submit = submits.iter().sum::<Duration>().checked_div(submits.len() as u32);
    Ok(Run { time, first_token: first_token.unwrap_or(time), submit, checksum: checksum.0 })
}

/// Computes tokens; the most likely one after the last, where wanted.
fn feed(
    context: &mut Context,
    sequence: SequenceId,
    tokens: &[u32],
    wanted: bool,
) -> Result<Option<u32>, Error> {
    let batch = context.limits().batch;
    let mut best = None;
    let last = tokens.chunks(batch).count();
    for (i, part) in tokens.chunks(batch).enumerate() {
        let rows = if wanted && i + 1 == last { RowsWanted::Last } else { RowsWanted::None };
        let part = StepPart { sequence, tokens: part, rows };
        if rows == RowsWanted::Last {
            best = match start_greedy(context, &[part])? {
                Some(picking) => tokens_of(context, picking)?.first().copied(),
                None => Some(largest(context.step(&[part])?.row(0))),
            };
        } else {
            context.step(&[part])?;
        }
    }
    Ok(best)
}

/// Queues a step whose parts each return their last row, of which the device finds the most likely token, as for a greedy
/// answer; `None` where it cannot.
fn start_greedy(context: &mut Context, parts: &[StepPart<'_>]) -> Result<Option<Picking>, Error> {
    if !context.can_pick(&Sampling::GREEDY) {
        return Ok(None);
    }
    context.start_picking(parts, &[], &vec![Sampling::GREEDY; parts.len()]).map(Some)
}

/// Waits for a step and returns the tokens that it found.
fn tokens_of(context: &mut Context, picking: Picking) -> Result<Vec<u32>, Error> {
    let token = |picked| match picked {
        Picked::Token(token) | Picked::BadLogit { token, .. } => token,
        Picked::NoCandidate => 0,
    };
    Ok(context.finish_picking(picking)?.into_iter().map(token).collect())
}

/// The token with the largest logit, the first of equals. Lanes are compared apart, so that a device's time is not lost
/// in its host's loop.
fn largest(row: &[f32]) -> u32 {
    const LANES: usize = 16;
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut top = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (top, v) in top.iter_mut().zip(chunk) {
            *top = if *v > *top { *v } else { *top };
        }
    }
    let top = top.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|v| *v == top).unwrap_or(0) as u32
}

/// Tokens without meaning, the same in every run.
struct Text(u64);

impl Text {
    fn next(&mut self, vocab: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(vocab)) as u32
    }
}

/// FNV-1a over token ids.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn add(&mut self, token: u32) {
        for byte in token.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// One step of a plan that ran.
#[derive(Clone, Debug)]
pub struct TracedStep {
    /// Whether it belongs to the prompt.
    pub prompt: bool,
    /// The device that it ran on, by its number in [`Context::placement`].
    pub device: usize,
    /// Kernel name.
    pub kernel: String,
    /// Names of the nodes.
    pub label: String,
    /// Operations that ran together: the nodes.
    pub nodes: usize,
    /// Kernels that the device was told to run for them.
    pub dispatches: u32,
    /// Layer, if any.
    pub layer: Option<u16>,
    /// Seconds from the start of the trace.
    pub start: f64,
    /// Seconds.
    pub duration: f64,
    /// Bytes that have to be moved.
    pub bytes: u64,
    /// Multiplications and additions.
    pub ops: u64,
}

/// A run, step by step.
#[derive(Clone, Debug)]
pub struct Traced {
    /// What each device can do at most.
    pub limits: Vec<Limits>,
    /// Steps in the order in which they ran.
    pub steps: Vec<TracedStep>,
}

/// Runs a prompt and a generation with the time of every step; once before without, to warm up.
///
/// # Errors
/// The context is too small, or a step fails.
pub fn trace(context: &mut Context, prompt: usize, generate: usize) -> Result<Traced, Error> {
    once(context, Test { prompt, generate, depth: 0, sequences: 1 })?;
    let limits = context.device_limits()?;
    let (sequence, _) = context.open_prefix(&[])?;
    context.set_tracing(true);
    let result = traced(context, sequence, prompt, generate);
    context.set_tracing(false);
    context.close(sequence);
    Ok(Traced { limits, steps: result? })
}

fn traced(
    context: &mut Context,
    sequence: SequenceId,
    prompt: usize,
    generate: usize,
) -> Result<Vec<TracedStep>, Error> {
    let vocab = context.model().arch().hparams().vocab;
    let batch = context.limits().batch;
    let mut text = Text(0);
    let mut steps = Vec::new();
    let tokens: Vec<u32> = (0..prompt).map(|_| text.next(vocab)).collect();
    let cuts = tokens.chunks(batch).map(|c| (c.to_vec(), true));
    let single = (0..generate).map(|_| (vec![text.next(vocab)], false)).collect::<Vec<_>>();
    for (part, of_prompt) in cuts.chain(single) {
        let before = context.len(sequence);
        feed(context, sequence, &part, true)?;
        let counts = StepCounts {
            tokens: part.len(),
            outputs: 1,
            span: before + part.len().div_ceil(2),
            kv_bits: context.kv_bits(),
        };
        let model = context.model().clone();
        for (device, plan, times) in context.take_trace()? {
            for time in times {
                let step = &plan.steps[time.step as usize];
                let cost = cost(&plan.graph, model.arch().weights(), step, counts);
                let nodes = step.nodes.iter().map(|n| plan.graph.node(*n));
                steps.push(TracedStep {
                    prompt: of_prompt,
                    device,
                    kernel: step.kernel.to_owned(),
                    label: nodes.clone().map(|n| n.label).collect::<Vec<_>>().join("+"),
                    nodes: step.nodes.len(),
                    dispatches: time.dispatches,
                    layer: nodes.clone().find_map(|n| n.layer),
                    start: time.start,
                    duration: time.duration,
                    bytes: cost.bytes,
                    ops: cost.ops,
                });
            }
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_the_customary_names() {
        let test = |prompt, generate, depth, sequences| Test { prompt, generate, depth, sequences };
        assert_eq!(test(512, 0, 0, 1).name(), "pp512");
        assert_eq!(test(0, 128, 4096, 1).name(), "tg128 @ d4096");
        assert_eq!(test(0, 32, 128, 8).name(), "tg32 x8 @ d128");
    }

    #[test]
    fn the_most_likely_token_is_the_first_of_the_largest() {
        for n in [1, 15, 16, 17, 100] {
            for at in 0..n {
                let mut row = vec![-1.0; n];
                row[at] = 2.0;
                row[n - 1] = 2.0;
                assert_eq!(largest(&row), at as u32);
            }
        }
        assert_eq!(largest(&[f32::NAN, 1.0]), 1);
        assert_eq!(largest(&[]), 0);
    }

    #[test]
    fn statistics_are_those_of_the_repeats() {
        let speeds = vec![4.0, 1.0, 3.0, 2.0];
        let test = Test { prompt: 1, generate: 0, depth: 0, sequences: 1 };
        let m = Measured { test, speeds, first_token: Duration::ZERO, submit: None, checksum: 0 };
        assert_eq!((m.mean(), m.median()), (2.5, 2.5));
        assert!((m.deviation() - 1.2909944).abs() < 1e-6);
    }
}
