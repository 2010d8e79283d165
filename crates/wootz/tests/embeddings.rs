//! Embeddings and scores against numbers that `scripts/make-embedding-goldens.py` computed with numpy.

use std::sync::Arc;
use std::sync::mpsc::channel;

use serde_json::Value;
use wootz::embed::{Norm, cosine};
use wootz::{
    Context, ContextOptions, Engine, EngineOptions, Error, Event, Model, ModelOptions, Pooling, Request,
};
use wootz_arch::{Setting, TinyModel};
use wootz_quant::WeightType;
use wootz_testkit::{models, tiny};

const GOLDEN: &str = include_str!("golden/embeddings.json");

/// What arithmetic of f32 differs by from that of f64, for numbers up to 1.
const CLOSE: f32 = 2e-6;

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn texts() -> Vec<Vec<u32>> {
    golden()["tiny"]["texts"].as_array().unwrap().iter().map(ids).collect()
}

fn options() -> ContextOptions {
    ContextOptions {
        device: "cpu".into(),
        threads: Some(2),
        context: Some(256),
        sequences: 2,
        batch: Some(64),
        k_type: wootz::KvType::F32,
        v_type: wootz::KvType::F32,
        ..ContextOptions::default()
    }
}

/// A tiny model of a family with those weights.
fn context(family: &str, change: impl Fn(TinyModel) -> TinyModel) -> Context {
    let arch = wootz_arch::find(family).unwrap();
    let types = tiny::Types(WeightType::F32, WeightType::F32);
    let bytes = tiny::build_with(arch, &change(arch.tiny()), types, tiny::named_elements);
    let model = Model::from_bytes(bytes, &ModelOptions::default()).unwrap();
    Context::new(Arc::new(model), &options(), &mut |_| ()).unwrap()
}

fn pooling(number: u32) -> impl Fn(TinyModel) -> TinyModel {
    move |tiny| tiny.with("pooling_type", Setting::U32(number))
}

/// A family's model that ranks.
fn ranker(family: &str) -> Context {
    context(family, |tiny| {
        let tiny = pooling(4)(tiny);
        match family {
            "bert" => tiny.with_tensor("cls.weight").with_tensor("cls.bias"),
            _ => tiny.with("classifier.output_labels", Setting::Strs(vec!["yes".into(), "no".into()])),
        }
    })
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    assert!(worst < CLOSE, "{what}: {worst:.1e} apart");
}

#[test]
fn embeddings_of_tiny_models_are_those_of_numpy() {
    for (family, ways) in golden()["tiny"]["models"].as_object().unwrap() {
        for (number, way) in [(1, Pooling::Mean), (2, Pooling::Cls), (3, Pooling::Last)] {
            let mut context = context(family, pooling(number));
            assert_eq!(context.model().pooling(), Some(way));
            let found = context.embed(&texts(), None).unwrap();
            for (i, (mut embedding, expected)) in
                found.into_iter().zip(ways[way.name()].as_array().unwrap()).enumerate()
            {
                assert_eq!(embedding.tokens, texts()[i].len());
                Norm::P(2).apply(&mut embedding.rows[0]);
                let what = format!("{family}, {}, text {i}", way.name());
                assert_close(&embedding.rows[0], &numbers(expected), &what);
            }
        }
    }
}

#[test]
fn scores_of_tiny_models_are_those_of_numpy() {
    for family in ["bert", "qwen3"] {
        let found = ranker(family).rank(&texts()).unwrap();
        let expected = numbers(&golden()["tiny"]["models"][family]["rank"]);
        let worst = found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && worst < 1e-4, "{family}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_in_any_company() {
    for family in ["bert", "nomic-bert", "qwen3"] {
        for number in [0, 1, 2, 3] {
            let mut context = context(family, pooling(number));
            // More than a step takes, in tokens and in blocks, with a long one between short ones.
            let texts: Vec<Vec<u32>> = (0..40u32)
                .map(|i| {
                    let n = if i == 7 { 200 } else { 1 + (i * 13) % 50 };
                    (0..n).map(|k| (k * k * 7 + i * 31) % 256).collect()
                })
                .collect();
            let way = Some(Pooling::ALL[number as usize]);
            let alone: Vec<_> = texts
                .iter()
                .map(|t| context.embed(std::slice::from_ref(t), way).unwrap().remove(0))
                .collect();
            assert!(alone.iter().flat_map(|e| &e.rows).flatten().all(|x| x.is_finite()));
            assert_eq!(context.embed(&texts, way).unwrap(), alone, "{family}, {way:?}");
            let mut reversed: Vec<_> = texts.clone();
            reversed.reverse();
            let mut found = context.embed(&reversed, way).unwrap();
            found.reverse();
            assert_eq!(found, alone, "{family}, {way:?}, the other way round");
            let rows = if number == 0 { 200 } else { 1 };
            assert_eq!(alone[7].rows.len(), rows);
        }
    }
}

#[test]
fn what_a_model_does_not_give_is_said() {
    let text = vec![vec![5, 6, 7]];
    let wrong = |result: Result<(), Error>| result.unwrap_err().to_string();
    let mut llama = context("llama", |tiny| tiny);
    assert_eq!(wrong(llama.embed(&text, None).map(|_| ())), "the model gives text, not embeddings");
    assert_eq!(wrong(llama.rank(&text).map(|_| ())), "the model gives text, not rankings");
    // Who names a way gets it.
    assert_eq!(llama.embed(&text, Some(Pooling::Mean)).unwrap()[0].rows[0].len(), 128);
    let mut bert = context("bert", pooling(1));
    assert_eq!(wrong(bert.rank(&text).map(|_| ())), "the model gives embeddings, not rankings");
    assert!(matches!(bert.embed(&[vec![]], None), Err(Error::EmptyPrompt)));
    assert!(matches!(bert.embed(&[vec![999]], None), Err(Error::BadToken { token: 999, vocab: 288 })));
    let long = wrong(bert.embed(&[vec![5; 257]], None).map(|_| ()));
    assert_eq!(long, "the text of 257 tokens is longer than the context of 256 tokens");
    assert_eq!(
        wrong(ranker("bert").embed(&text, None).map(|_| ())),
        "the model gives rankings, not embeddings"
    );
    let engine = Engine::start(bert, EngineOptions::default()).unwrap();
    let refused = engine.generate(Request::new(vec![5])).err().unwrap();
    assert_eq!(refused.to_string(), "the model gives embeddings, not text");
    assert_eq!(engine.embed(text, None).unwrap()[0].rows.len(), 1);
}

#[test]
fn a_model_that_generates_also_embeds_between_its_steps() {
    let engine = Engine::start(context("qwen3", |tiny| tiny), EngineOptions::default()).unwrap();
    let texts = vec![vec![1, 2, 3], vec![4; 70]];
    let alone = engine.embed(texts.clone(), Some(Pooling::Mean)).unwrap();
    let generation = engine.generate(Request::new(vec![9; 20]).max_tokens(40)).unwrap();
    assert_eq!(engine.embed(texts, Some(Pooling::Mean)).unwrap(), alone);
    assert!(generation.into_iter().any(|event| matches!(event, Event::Done(_))));
    assert_eq!(engine.waiting(), 0);
}

/// Calls `f` while the engine's thread stands still, so that all that it submits is there at once.
fn while_held<R>(engine: &Engine, f: impl FnOnce() -> R) -> R {
    let (release, released) = channel::<()>();
    std::thread::scope(|scope| {
        let (holds, held) = channel();
        scope.spawn(move || {
            engine.with_context(move |_| {
                holds.send(()).unwrap();
                // Ends as the sender goes.
                let _ = released.recv();
            })
        });
        held.recv().unwrap();
        let result = f();
        drop(release);
        result
    })
}

#[test]
fn a_short_request_does_not_wait_for_a_long_one() {
    let engine = Engine::start(context("bert", pooling(1)), EngineOptions::default()).unwrap();
    let long: Vec<Vec<u32>> = (0..50).map(|i| vec![5 + i; 60]).collect();
    let alone = engine.embed(long.clone(), None).unwrap();
    let (tell, told) = channel();
    while_held(&engine, || {
        for (name, texts) in [("long", long.clone()), ("short", vec![vec![7; 3]]), ("none", Vec::new())] {
            let tell = tell.clone();
            engine.start_embedding(texts, None, move |result| tell.send((name, result)).unwrap()).unwrap();
        }
        assert_eq!(engine.waiting(), 3);
    });
    let replies: Vec<_> = told.iter().take(3).map(|(name, result)| (name, result.unwrap())).collect();
    assert_eq!((replies[0].0, replies[1].0, replies[2].0), ("none", "short", "long"));
    assert_eq!((replies[1].1.len(), &replies[2].1), (1, &alone));
    assert_eq!(engine.waiting(), 0);
}

#[test]
fn texts_can_be_taken_back_and_the_queue_is_bounded() {
    let options = EngineOptions { queue: 2, ..EngineOptions::default() };
    let engine = Engine::start(context("bert", pooling(1)), options).unwrap();
    let (tell, told) = channel();
    while_held(&engine, || {
        let start = |name: &'static str| {
            let tell = tell.clone();
            engine.start_embedding(vec![vec![5]], None, move |_| tell.send(name).unwrap())
        };
        let first = start("first").unwrap();
        start("second").unwrap();
        assert!(matches!(start("third"), Err(Error::QueueFull { waiting: 2, limit: 2 })));
        first.cancel();
    });
    drop(tell);
    assert_eq!(told.iter().collect::<Vec<_>>(), ["second"]);
    assert_eq!(engine.waiting(), 0);
}

#[test]
fn texts_are_cut_before_the_token_that_ends_them() {
    let bert = context("bert", pooling(1));
    let model = bert.model();
    let (cls, sep) = (2, 3);
    let mut tokens = model.tokenize(b"abcdef");
    assert_eq!((tokens[0], tokens[7], tokens.len()), (cls, sep, 8));
    model.cut_tokens(&mut tokens, 4);
    assert_eq!(tokens[..], [cls, model.tokenize(b"abcdef")[1], model.tokenize(b"abcdef")[2], sep]);
    let pair = model.pair_tokens("ab", "c");
    let (ab, c) = (model.tokenize(b"ab"), model.tokenize(b"c"));
    assert_eq!(pair, [&ab[..], &c[1..]].concat());
}

fn minilm() -> Context {
    let path = models::fetched("all-minilm-l6-v2-f32.gguf");
    let model = Model::open(path, &ModelOptions::default()).unwrap();
    let options = ContextOptions { context: None, batch: Some(512), ..options() };
    Context::new(Arc::new(model), &options, &mut |_| ()).unwrap()
}

#[test]
fn minilm_gives_the_embeddings_of_its_makers() {
    let mut context = minilm();
    assert_eq!((context.limits().context, context.model().pooling()), (512, Some(Pooling::Mean)));
    let golden = golden();
    let cases = golden["minilm"].as_array().unwrap();
    let tokens: Vec<Vec<u32>> = cases
        .iter()
        .map(|case| {
            let tokens = context.model().tokenize(case["text"].as_str().unwrap().as_bytes());
            assert_eq!(tokens, ids(&case["tokens"]), "{}", case["text"]);
            tokens
        })
        .collect();
    for (embedding, case) in context.embed(&tokens, None).unwrap().iter_mut().zip(cases) {
        Norm::P(2).apply(&mut embedding.rows[0]);
        let expected = numbers(&case["embedding"]);
        assert_close(&embedding.rows[0], &expected, case["text"].as_str().unwrap());
        assert!(cosine(&embedding.rows[0], &expected) > 0.999_999_9);
    }
}

#[test]
fn a_quantised_minilm_keeps_the_angles() {
    let file = minilm();
    let quantised = models::requantised(file.model().file(), WeightType::Q8_0);
    let model = Arc::new(Model::from_bytes(quantised, &ModelOptions::default()).unwrap());
    let mut context =
        Context::new(model, &ContextOptions { context: None, ..options() }, &mut |_| ()).unwrap();
    let golden = golden();
    let cases = golden["minilm"].as_array().unwrap();
    let tokens: Vec<Vec<u32>> = cases.iter().map(|case| ids(&case["tokens"])).collect();
    for (embedding, case) in context.embed(&tokens, None).unwrap().iter().zip(cases) {
        let found = cosine(&embedding.rows[0], &numbers(&case["embedding"]));
        assert!(found > 0.999, "{}: {found}", case["text"]);
    }
}
