//! Models with experts beyond what the tiny models of the families have: Mixtral, whose files are llama's, and refusals.

use std::sync::Arc;

use wootz::{Context, ContextOptions, KvType, Model, ModelOptions, RowsWanted, StepPart};
use wootz_arch::{ArchError, Setting};
use wootz_quant::WeightType;
use wootz_testkit::{interpret, nmse, tiny};

/// A tiny Mixtral as GGUF bytes.
fn mixtral(types: tiny::Types) -> Vec<u8> {
    let llama = wootz_arch::find("llama").unwrap();
    let tiny = llama.tiny().with("expert_count", Setting::U32(4)).with("expert_used_count", Setting::U32(2));
    tiny::build_model(llama, &tiny, types, 5)
}

#[test]
fn mixtral_agrees_with_the_interpreter() {
    let tokens: Vec<u32> = (0..70).map(|i| (i * 37 + i * i * 11) % 256).collect();
    // Types whose activations are not rounded: those on the edge would choose other experts.
    for ty in [WeightType::F32, WeightType::F16] {
        let types = tiny::Types(ty, ty);
        let model = Arc::new(Model::from_bytes(mixtral(types), &ModelOptions::default()).unwrap());
        let options =
            ContextOptions { device: "cpu".into(), context: Some(128), ..ContextOptions::default() };
        let mut context = Context::new(model.clone(), &options, &mut |_| ()).unwrap();
        let (sequence, _) = context.open_prefix(&[]).unwrap();
        let mut found = Vec::new();
        // A prompt, then single tokens.
        let (prompt, after) = tokens.split_at(60);
        for chunk in [prompt].into_iter().chain(after.chunks(1)) {
            let output =
                context.step(&[StepPart { sequence, tokens: chunk, rows: RowsWanted::All }]).unwrap();
            found.extend((0..chunk.len()).flat_map(|row| output.row(row).to_vec()));
        }
        let expected = interpret(model.arch(), model.weight_source(), &tokens, KvType::F16);
        let error = nmse(&found, &expected);
        assert!(error < 1e-5, "{ty}: error {error:.1e}");
    }
}

/// What a family says of a tiny model's file with another number under a key.
fn refusal(family: &str, key: &str, value: u32) -> ArchError {
    let arch = wootz_arch::find(family).unwrap();
    let bytes = tiny::build(arch, tiny::Types::FLOAT, 1);
    let model = Model::from_bytes(bytes, &ModelOptions::default()).unwrap();
    let mut meta = model.file().meta().clone();
    meta.set(&format!("{family}.{key}"), value).unwrap();
    arch.hparams(&meta).expect_err("a number that cannot be")
}

#[test]
fn impossible_experts_are_refused_with_key_and_numbers() {
    for (family, key, value, expected) in [
        ("qwen3moe", "expert_count", 0, "a number from 1 to 4096"),
        ("qwen3moe", "expert_count", 1 << 20, "a number from 1 to 4096"),
        ("qwen3moe", "expert_used_count", 0, "a number from 1 to 8"),
        ("qwen3moe", "expert_used_count", 9, "a number from 1 to 8"),
        ("qwen3moe", "expert_feed_forward_length", 0, "a number from 1 to"),
        ("qwen2moe", "expert_shared_feed_forward_length", 0, "a number from 1 to"),
    ] {
        let text = refusal(family, key, value).to_string();
        for part in [&format!("{family}.{key}"), &value.to_string(), expected] {
            assert!(text.contains(part), "{text:?} has no {part:?}");
        }
    }
}

#[test]
fn a_mixture_without_the_number_used_is_refused() {
    let llama = wootz_arch::find("llama").unwrap();
    let bytes = tiny::build(llama, tiny::Types::FLOAT, 1);
    let mut meta = Model::from_bytes(bytes, &ModelOptions::default()).unwrap().file().meta().clone();
    meta.set("llama.expert_count", 8u32).unwrap();
    let text = llama.hparams(&meta).expect_err("a key is missing").to_string();
    assert!(text.contains("llama.expert_used_count"), "{text}");
}
