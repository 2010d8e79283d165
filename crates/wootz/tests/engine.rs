//! The engine: constraints, users, and a cache that runs full.

use std::sync::Arc;
use std::sync::mpsc::channel;

use wootz::sample::{BitMask, SamplingParams};
use wootz::{
    Constraint, ConstraintError, Context, ContextOptions, Engine, EngineOptions, Error, Event, Model,
    ModelOptions, Overflow, Request, StopReason,
};
use wootz_quant::WeightType;
use wootz_testkit::tiny;

fn engine(context: usize, options: EngineOptions) -> Engine {
    let llama = wootz_arch::find("llama").unwrap();
    let bytes = tiny::build(llama, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
    let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
    let settings = ContextOptions {
        context: Some(context),
        threads: Some(1),
        sequences: 1,
        batch: Some(64),
        ..ContextOptions::default()
    };
    Engine::start(Context::new(model, &settings, &mut |_| ()).unwrap(), options).unwrap()
}

fn request(prompt: &str, max_tokens: usize, seed: u64) -> Request {
    let sampling = SamplingParams { seed: Some(seed), ignore_eos: true, ..SamplingParams::default() };
    Request::new(prompt.bytes().map(u32::from).collect()).max_tokens(max_tokens).sampling(sampling)
}

fn tokens(events: impl Iterator<Item = Event>) -> (Vec<u32>, Result<StopReason, Error>) {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            Event::Prompt { .. } => {}
            Event::Token(token) => tokens.push(token.token),
            Event::Done(finish) => return (tokens, Ok(finish.reason)),
            Event::Failed(e) => return (tokens, Err(e)),
        }
    }
    panic!("a generation ends with its result");
}

/// Allows the given tokens one after the other, then fails or is complete.
#[derive(Debug)]
struct Script {
    tokens: Vec<u32>,
    at: usize,
    fails: bool,
    mask: Option<BitMask<'static>>,
}

impl Constraint for Script {
    fn prepare(&mut self) -> Result<(), ConstraintError> {
        let next = self.tokens.get(self.at).ok_or_else(|| ConstraintError("the script is over".into()))?;
        self.mask = Some(BitMask::from_tokens([*next], 288));
        Ok(())
    }

    fn mask(&self) -> Option<BitMask<'_>> {
        self.mask.clone()
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(token, self.tokens[self.at]);
        self.at += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        !self.fails && self.at == self.tokens.len()
    }
}

fn script(fails: bool) -> Option<Box<dyn Constraint>> {
    Some(Box::new(Script { tokens: vec![104, 105, 33], at: 0, fails, mask: None }))
}

#[test]
fn a_constraint_leads_ends_and_fails_its_own_request_only() {
    let engine = engine(256, EngineOptions::default());
    let alone = tokens(engine.generate(request("abc", 30, 1)).unwrap()).0;
    let led = engine.generate(Request { constraint: script(false), ..request("abc", 30, 1) }).unwrap();
    let failing = engine.generate(Request { constraint: script(true), ..request("abc", 30, 1) }).unwrap();
    let free = engine.generate(request("abc", 30, 1)).unwrap();
    let (led, reason) = tokens(led);
    assert_eq!((led, reason.unwrap()), (vec![104, 105, 33], StopReason::EndOfText));
    let (failed, reason) = tokens(failing);
    assert_eq!(failed, [104, 105, 33]);
    assert!(matches!(reason, Err(Error::Constraint(_))), "{reason:?}");
    assert_eq!(tokens(free).0, alone);
}

#[test]
fn requests_that_wait_again_give_the_same_tokens() {
    let prompt = |i: u64| format!("{i}{}", "word ".repeat(20));
    let alone: Vec<Vec<u32>> = (0..4)
        .map(|i| {
            tokens(engine(1024, EngineOptions::default()).generate(request(&prompt(i), 600, i)).unwrap()).0
        })
        .collect();
    // 1,024 positions for four that want 700 each, of which two fit when they start.
    let engine = engine(1024, EngineOptions::default());
    let running: Vec<_> = (0..4).map(|i| engine.generate(request(&prompt(i), 600, i)).unwrap()).collect();
    for (generation, alone) in running.into_iter().zip(&alone) {
        let (tokens, reason) = tokens(generation);
        assert_eq!((&tokens, reason.unwrap()), (alone, StopReason::Length));
    }
    assert!(engine.stats().preempted > 0, "{:?}", engine.stats());
}

/// Greedy, so that a continuation depends on the tokens before it alone.
fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let sampling = SamplingParams {
        temperature: 0.0,
        repeat_penalty: 1.0,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    Request::new(prompt).max_tokens(max_tokens).sampling(sampling)
}

#[test]
fn an_answer_that_slides_goes_on_from_what_is_left() {
    const CONTEXT: usize = 96;
    let engine = engine(CONTEXT, EngineOptions::default());
    let prompt: Vec<u32> = (0..40).map(|i| 97 + i % 26).collect();
    let beyond = engine.generate(greedy(prompt.clone(), 300)).map(|_| ());
    assert!(matches!(beyond, Err(Error::ContextFull { .. })));
    for keep in [0, 7, CONTEXT] {
        let request = Request { overflow: Overflow::Slide { keep }, ..greedy(prompt.clone(), 300) };
        let (slid, reason) = tokens(engine.generate(request).unwrap());
        assert_eq!((slid.len(), reason.unwrap()), (300, StopReason::Length));
        // The same by hand: whole requests one after the other, each from what the last one left.
        let (mut left, mut out, keep) = (prompt.clone(), Vec::new(), keep.min(CONTEXT / 2));
        while out.len() < 300 {
            let n = (CONTEXT + 1 - left.len()).min(300 - out.len());
            let (more, _) = tokens(engine.generate(greedy(left.clone(), n)).unwrap());
            left.extend(&more);
            out.extend(more);
            let dropped = (left.len() - keep).div_ceil(2);
            left.drain(keep..keep + dropped);
        }
        assert_eq!(slid, out, "{keep}");
    }
    // Without a number of tokens it ends where the context is full.
    let open =
        Request { max_tokens: None, overflow: Overflow::Slide { keep: 0 }, ..greedy(prompt.clone(), 1) };
    let (whole, reason) = tokens(engine.generate(open).unwrap());
    assert_eq!((whole.len(), reason.unwrap()), (CONTEXT + 1 - prompt.len(), StopReason::ContextFull));
    // A prompt must fit in any case.
    let long = Request { overflow: Overflow::Slide { keep: 0 }, ..greedy(vec![97; CONTEXT + 1], 1) };
    assert!(matches!(engine.generate(long).map(|_| ()), Err(Error::ContextFull { .. })));
}

#[test]
fn a_limit_of_memory_holds_for_weights_and_caches() {
    let llama = wootz_arch::find("llama").unwrap();
    let bytes = tiny::build(llama, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
    let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
    let open = |memory| {
        let options = ContextOptions { memory, threads: Some(1), ..ContextOptions::default() };
        Context::new(model.clone(), &options, &mut |_| ())
    };
    let weights = model.arch().weights().total_bytes();
    let free = open(None).unwrap();
    let caches = free.memory().caches;
    // The model's own context is as short as one that nobody named may be.
    assert_eq!(open(Some(weights + caches)).unwrap().limits(), free.limits());
    let refused = open(Some(weights + caches - 1)).map(|_| ());
    assert!(matches!(refused, Err(Error::ContextMemory { available, .. }) if available == caches - 1));
}

#[test]
fn a_full_queue_refuses_and_room_for_one_runs_one() {
    let engine = engine(256, EngineOptions { queue: 2, running: 1 });
    let (begun, has_begun) = channel();
    let (release, released) = channel::<()>();
    let mut held = false;
    // Holds the engine's thread at the first event, as a sink must not do elsewhere.
    let sink = Box::new(move |_| {
        if !std::mem::replace(&mut held, true) {
            begun.send(()).unwrap();
            released.recv().unwrap();
        }
    });
    engine.submit(request("a", 20, 1), sink).unwrap();
    has_begun.recv().unwrap();
    let rest: Vec<_> = (0..8).map(|i| engine.generate(request("b", 3, i))).collect();
    let refused = rest.iter().filter(|r| matches!(r, Err(Error::QueueFull { waiting: 2, limit: 2 }))).count();
    assert_eq!((refused, engine.waiting()), (6, 2));
    release.send(()).unwrap();
    for generation in rest.into_iter().flatten() {
        assert_eq!(tokens(generation).0.len(), 3);
    }
    let stats = engine.stats();
    assert_eq!((stats.steps, engine.waiting()), (stats.parts, 0));
}
