//! The Metal backend behind the library's own interface: a real model on emulated devices, and plans of real shapes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use wootz::{Context, ContextOptions, Model, ModelOptions, RowsWanted, StepPart};
use wootz_arch::ARCHITECTURES;
use wootz_graph::{Backend, GraphKey, Outputs, Plan, Wants, WeightSpec, passes};
use wootz_metal::{MetalBackend, MetalOptions, NoDevices};
use wootz_quant::WeightType;
use wootz_testkit::models;

fn smollm2() -> Arc<Model> {
    let path = models::fetched("smollm2-135m-instruct-q4_1.gguf");
    Arc::new(Model::open(path, &ModelOptions::default()).unwrap())
}

/// Greedy tokens after a prompt, on a device.
fn greedy(model: &Arc<Model>, device: &str, prompt: &str, n: usize) -> Vec<u32> {
    let options = ContextOptions {
        context: Some(256),
        threads: Some(2),
        device: device.into(),
        ..ContextOptions::default()
    };
    let mut context = Context::new(model.clone(), &options, &mut |_| ()).unwrap();
    let (sequence, _) = context.open_prefix(&[]).unwrap();
    let mut input = model.tokenize(prompt.as_bytes());
    let mut tokens = Vec::new();
    for _ in 0..n {
        let output = context.step(&[StepPart { sequence, tokens: &input, rows: RowsWanted::Last }]).unwrap();
        let row = output.row(0);
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        tokens.push(best);
        input = vec![best];
    }
    tokens
}

#[test]
fn a_real_model_begins_as_on_the_cpu() {
    let model = smollm2();
    let prompt = "The capital of France is";
    // The sixth token is a near tie, which the CPU's activations of 8 bits turn; tests of wootz-metal compare the
    // logits with the interpreter.
    let expected = greedy(&model, "cpu", prompt, 5);
    for device in ["metal-emulator", "metal-emulator:discrete"] {
        assert_eq!(greedy(&model, device, prompt, 5), expected, "{device}");
    }
}

/// The metadata and shapes of a model, without bytes.
fn shape(layers: u32, dim: u32, heads: u32, kv_heads: u32, ff: u32) -> wootz_arch::Model {
    let mut meta = wootz_gguf::Metadata::default();
    let mut set = |key: &str, value: u32| {
        meta.set(&format!("qwen2.{key}"), value).unwrap();
    };
    set("block_count", layers);
    set("embedding_length", dim);
    set("attention.head_count", heads);
    set("attention.head_count_kv", kv_heads);
    set("feed_forward_length", ff);
    set("context_length", 4096);
    set("vocab_size", 151_936);
    meta.set("general.architecture", "qwen2").unwrap();
    meta.set("qwen2.attention.layer_norm_rms_epsilon", 1e-6f32).unwrap();
    let arch = ARCHITECTURES.iter().find(|a| a.name() == "qwen2").unwrap();
    let hp = arch.hparams(&meta).unwrap();
    let mut spec = WeightSpec::default();
    arch.weights(&hp, &mut spec);
    let entries = spec.entries().to_vec();
    let find = |name: &str| {
        let entry = entries.iter().find(|e| e.name == name)?;
        let ty = match (entry.rows, name.contains("attn_v") || name.contains("ffn_down")) {
            (1, _) => WeightType::F32,
            // As in files of mixed types.
            (_, true) => WeightType::Q6_K,
            _ => WeightType::Q4_K,
        };
        Some((ty, entry.rows, entry.cols))
    };
    wootz_arch::Model::new(&meta, find).unwrap()
}

fn plan(model: &wootz_arch::Model, tokens: u32, outputs: u32) -> Plan {
    let backend = MetalBackend::new("metal", MetalOptions::default(), Arc::new(NoDevices));
    let key =
        GraphKey { tokens, seqs: 1, outputs: Outputs::Some(outputs), kv_span: 1024, wants: Wants::Logits };
    passes::compile(model.graph(key).unwrap(), model.weights(), &backend as &dyn Backend).unwrap()
}

#[test]
fn a_decode_step_has_few_dispatches() {
    // The shapes of Qwen2.5 0.5B and 7B.
    for (name, model) in [("0.5B", shape(24, 896, 14, 2, 4864)), ("7B", shape(28, 3584, 28, 4, 18944))] {
        let layers = model.hparams().layers as usize;
        let decode = plan(&model, 1, 1);
        let inside = decode
            .steps
            .iter()
            .filter(|s| s.nodes.iter().any(|n| decode.graph.node(*n).layer.is_some_and(|l| l == 1)));
        let dispatches: usize = inside.map(|s| wootz_metal::dispatches(&decode, s, model.weights())).sum();
        assert!(dispatches <= 8, "{name}: {dispatches} dispatches a layer\n{decode}");
        assert!(decode.steps.len() <= 6 * layers + 4, "{name}: {} steps", decode.steps.len());
        assert!(decode.barriers() < decode.steps.len(), "{name}");
        let prefill = plan(&model, 512, 1);
        assert!(prefill.steps.len() <= 9 * layers + 4, "{name}: {} steps\n{prefill}", prefill.steps.len());
    }
}
