//! Tiny models of every family, end to end on emulated devices: the greedy tokens of the CPU, and the logits of the
//! interpreter.

use wootz_arch::decoders;
use wootz_cpu::{CpuBackend, CpuOptions};
use wootz_graph::KvType;
use wootz_metal::MetalOptions;
use wootz_metal::emulator::{Order, Profile};
use wootz_quant::WeightType;
use wootz_testkit::{nmse, tiny};

use crate::common::{Setup, backend};
use crate::model::TinyModel;

const FLOAT: tiny::Types = tiny::Types(WeightType::F32, WeightType::F32);
const QUANTISED: tiny::Types = tiny::Types(WeightType::Q4_0, WeightType::Q8_0);

fn prompt() -> Vec<i32> {
    (0..45).map(|i| (i * 37 + i * i * 11) % 256).collect()
}

/// Runs all families on a device.
fn run(setup: impl Fn() -> Setup, types: tiny::Types, kv: KvType) {
    let cpu = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() });
    for family in decoders() {
        let model = TinyModel::new(family, types);
        let what = format!("{} on {}, {types:?}", family.name(), setup().profile.name);
        let found = model.run(&backend(setup()), kv, &prompt(), 5);
        let (logits, tokens) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        // Where the CPU rounds activations to 8 bits, it may choose other experts, and then other tokens.
        if types.0 == WeightType::F32 || !model.has_experts() {
            let (_, expected) = model.run(&cpu, kv, &prompt(), 5).unwrap();
            assert_eq!(tokens, expected, "{what}: other tokens than the CPU");
        }
        let error = nmse(&logits, &model.reference(kv, &prompt(), &tokens));
        assert!(error < 1e-6, "{what}: error {error:.1e}");
    }
}

#[test]
fn unified_memory() {
    run(|| Setup::new(Profile::unified()), FLOAT, KvType::F16);
}

#[test]
fn discrete_memory() {
    run(|| Setup::new(Profile::discrete().ordered(Order::Random(5))), QUANTISED, KvType::F16);
}

#[test]
fn a_real_model() {
    let path = wootz_testkit::models::fetched("smollm2-135m-instruct-q4_1.gguf");
    let model = TinyModel::from_file(wootz_gguf::Model::open(path).unwrap());
    // "The capital of France is"
    let prompt = [504, 3575, 282, 4649, 314];
    let [(logits, tokens), (discrete, same)] = [Profile::unified(), Profile::discrete()].map(|profile| {
        let device = backend(Setup::new(profile.untraced()));
        model.run(&device, KvType::F16, &prompt, 6).unwrap()
    });
    assert_eq!(same, tokens);
    let reference = model.reference(KvType::F16, &prompt, &tokens);
    for logits in [logits, discrete] {
        let error = nmse(&logits, &reference);
        assert!(error < 1e-6, "error {error:.1e}, tokens {tokens:?}");
    }
}

#[test]
#[ignore = "takes minutes; see docs/metal.md"]
fn all_devices_in_all_orders() {
    for profile in Profile::all() {
        for order in Order::ALL {
            run(|| Setup::new(profile.clone().ordered(order)), QUANTISED, KvType::F16);
        }
    }
}

#[test]
#[ignore = "takes minutes; see docs/metal.md"]
fn other_cache_types() {
    for kv in [KvType::F32, KvType::Q8_0] {
        run(|| Setup::new(Profile::unified()), FLOAT, kv);
    }
}

#[test]
#[ignore = "takes minutes; see docs/metal.md"]
fn without_fusion_or_concurrency() {
    let plain =
        MetalOptions { fusion: false, concurrency: false, command_buffers: Some(3), private_weights: true };
    run(|| Setup { options: plain, ..Setup::new(Profile::unified()) }, QUANTISED, KvType::F16);
}
