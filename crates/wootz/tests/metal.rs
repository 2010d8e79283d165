//! The Metal backend behind the library's own interface: a real model on emulated devices.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use wootz::{Context, ContextOptions, Model, ModelOptions, RowsWanted, StepPart};
use wootz_quant::WeightType;
use wootz_testkit::{models, nmse, tiny};

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

#[test]
fn encoders_give_the_rows_of_the_cpu() {
    let texts: [Vec<u32>; 3] = [40, 7, 61].map(|n| (0..n).map(|i| (i * 37 + n) % 256).collect());
    for arch in wootz_arch::encoders() {
        let bytes = tiny::build(arch, tiny::Types(WeightType::F32, WeightType::F32), 7);
        let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
        let embed = |device: &str| {
            let (device, threads) = (device.into(), Some(1));
            let options = ContextOptions {
                context: Some(128),
                sequences: 3,
                threads,
                device,
                ..ContextOptions::default()
            };
            let mut context = Context::new(model.clone(), &options, &mut |_| ()).unwrap();
            context.embed(&texts, None).unwrap()
        };
        let expected = embed("cpu");
        for device in ["metal-emulator", "metal-emulator:discrete"] {
            for (found, expected) in embed(device).iter().zip(&expected) {
                assert_eq!(found.rows.len(), expected.rows.len());
                for (found, expected) in found.rows.iter().zip(&expected.rows) {
                    let error = nmse(found, expected);
                    assert!(error < 1e-8, "{} on {device}: {error:.1e}", arch.name());
                }
            }
        }
    }
}
