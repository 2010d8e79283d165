//! Tokens that the device picks, on emulated Metal devices: those that the sampler picks from the same logits, and those
//! of the CPU, with the next step queued while one is under way.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use wootz::sample::{BlankVocab, Picked, Sampler, SamplingParams};
use wootz::{
    Context, ContextOptions, Engine, EngineOptions, Event, Model, ModelOptions, Request, RowsWanted,
    SequenceId, StepPart, StopReason,
};
use wootz_quant::WeightType;
use wootz_testkit::tiny;

const DEVICES: [&str; 2] = ["metal-emulator", "metal-emulator:discrete"];

fn model() -> Arc<Model> {
    let llama = wootz_arch::find("llama").unwrap();
    let bytes = tiny::build(llama, tiny::Types(WeightType::F32, WeightType::F32), 7);
    Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap())
}

fn context(model: &Arc<Model>, device: &str) -> Context {
    let options = ContextOptions {
        context: Some(256),
        threads: Some(1),
        sequences: 4,
        batch: Some(64),
        device: device.into(),
        ..ContextOptions::default()
    };
    Context::new(model.clone(), &options, &mut |_| ()).unwrap()
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        temperature: 1.5,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        ..SamplingParams::default()
    }
}

fn step(context: &mut Context, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let parts = [StepPart { sequence, tokens, rows: RowsWanted::Last }];
    context.step(&parts).unwrap().row(0).to_vec()
}

#[test]
fn the_same_logits_give_the_sampler_s_token() {
    let model = model();
    for device in DEVICES {
        let mut context = context(&model, device);
        let (sequence, _) = context.open_prefix(&[]).unwrap();
        let mut input: Vec<u32> = (1..40).collect();
        let mut host: Option<Sampler> = None;
        let mut edits = Vec::new();
        for _ in 0..12 {
            let length = context.len(sequence);
            let logits = step(&mut context, sequence, &input);
            context.truncate(sequence, length).unwrap();
            let host =
                host.get_or_insert_with(|| Sampler::new(seeded(5), &BlankVocab(logits.len())).unwrap());
            let sampling = host.on_device(0, &mut edits).unwrap();
            let parts = [StepPart { sequence, tokens: &input, rows: RowsWanted::Last }];
            let picked = context.step_picking(&parts, &[sampling]).unwrap();
            let token = host.sample(&logits, None).unwrap().token;
            assert_eq!(picked, [Picked::Token(token)], "{device}");
            host.accept(token);
            input = vec![token];
        }
    }
}

/// Tokens and text of an answer, and why it ended.
fn answer(events: impl Iterator<Item = Event>) -> (Vec<u32>, String, StopReason) {
    with_cached(events).0
}

/// An answer, and how many tokens of its prompt were in the cache.
fn with_cached(events: impl Iterator<Item = Event>) -> ((Vec<u32>, String, StopReason), usize) {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for event in events {
        match event {
            Event::Prompt { .. } => {}
            Event::Token(token) => {
                tokens.push(token.token);
                text.push_str(&token.text);
            }
            Event::Done(finish) => {
                let cached = finish.timings.cached_tokens;
                return ((tokens, text + &finish.text, finish.reason), cached);
            }
            Event::Failed(e) => panic!("{e}"),
        }
    }
    panic!("a generation ends with its result");
}

fn request(prompt: &str, n: usize, sampling: SamplingParams) -> Request {
    let sampling = SamplingParams { ignore_eos: true, ..sampling };
    Request::new(prompt.bytes().map(u32::from).collect()).max_tokens(n).sampling(sampling)
}

#[test]
fn steps_queued_ahead_give_the_same_answers() {
    let model = model();
    let engine = |device: &str| Engine::start(context(&model, device), EngineOptions::default()).unwrap();
    let cpu = engine("cpu");
    let prompt = "The quick brown fox jumps over the lazy dog";
    let expected = answer(cpu.generate(request(prompt, 60, SamplingParams::greedy())).unwrap());
    assert_eq!(cpu.stats().queued_ahead, 0);
    for device in DEVICES {
        let engine = engine(device);
        let alone = |r: Request| answer(engine.generate(r).unwrap());
        assert_eq!(alone(request(prompt, 60, SamplingParams::greedy())), expected, "{device}");
        let ahead = engine.stats().queued_ahead;
        assert!(ahead >= 58, "{device}: {ahead} steps queued ahead");
        // It ends while a step with its next token is under way, and what that wrote is not found again.
        let stop: String = expected.1.chars().skip(10).take(3).collect();
        let (tokens, _, reason) = alone(request(prompt, 60, SamplingParams::greedy()).stop(stop.clone()));
        assert_eq!(reason, StopReason::StopText(stop), "{device}");
        assert_eq!(tokens, expected.0[..tokens.len()], "{device}");
        let mut longer: Vec<u32> = prompt.bytes().map(u32::from).collect();
        longer.extend(&tokens);
        longer.push(tokens[0]);
        let continued = request("", 20, SamplingParams::greedy());
        let continued = Request { prompt: longer.clone(), ..continued };
        let (after, cached) = with_cached(engine.generate(continued).unwrap());
        // All but the last token generated, which was never computed or is not to be found.
        assert!((prompt.len() + tokens.len() - 1..longer.len()).contains(&cached), "{device}: {cached}");
        let fresh = request("", 20, SamplingParams::greedy());
        let fresh = Request { prompt: longer, cache_prompt: false, ..fresh };
        assert_eq!(after.0, alone(fresh).0, "{device}");
        // Several together, of different lengths, of which one cannot be picked on the device and one is cancelled.
        let lengths = [5, 40, 23];
        let all = lengths.map(|n| engine.generate(request(prompt, n, SamplingParams::greedy())).unwrap());
        drop(engine.generate(request("another prompt", 60, SamplingParams::greedy())).unwrap());
        let reported = SamplingParams { n_probs: Some(0), ..SamplingParams::greedy() };
        let host = engine.generate(request(prompt, 12, reported)).unwrap();
        for (n, generation) in lengths.into_iter().zip(all) {
            assert_eq!(answer(generation).0, expected.0[..n], "{device}");
        }
        assert_eq!(answer(host).0, expected.0[..12], "{device}");
    }
}

#[test]
fn a_seed_gives_the_same_tokens_whoever_picks() {
    let model = model();
    let prompt = "It was a dark and stormy night";
    // Penalties look at the token before: no step is queued ahead. Without them it is.
    let plain = SamplingParams { repeat_penalty: 1.0, presence_penalty: 0.0, ..seeded(9) };
    for params in [seeded(8), plain] {
        let engine = Engine::start(context(&model, DEVICES[0]), EngineOptions::default()).unwrap();
        let picked = answer(engine.generate(request(prompt, 30, params.clone())).unwrap());
        let ahead = engine.stats().queued_ahead;
        assert_eq!(ahead > 0, params.repeat_penalty == 1.0);
        // Probabilities are reported by the host alone.
        let reported = SamplingParams { n_probs: Some(1), ..params };
        let on_host = answer(engine.generate(request(prompt, 30, reported)).unwrap());
        assert_eq!(engine.stats().queued_ahead, ahead);
        assert_eq!(picked, on_host);
    }
}
