//! Logits of tiny models against numbers that `scripts/make-decoder-goldens.py` computed with numpy.

use std::sync::Arc;

use serde_json::Value;
use wootz::{Context, ContextOptions, KvType, Model, ModelOptions, RowsWanted, StepPart};
use wootz_testkit::{nmse, tiny};

const GOLDEN: &str = include_str!("golden/decoders.json");

/// Logits of every token of a text, by a family's tiny model with weights that its names give.
fn logits(family: &str, text: &[u32]) -> Vec<Vec<f32>> {
    let arch = wootz_arch::find(family).unwrap();
    let bytes = tiny::build_with(arch, &arch.tiny(), tiny::Types::FLOAT, tiny::named_elements);
    let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
    let options = ContextOptions {
        device: "cpu".into(),
        threads: Some(2),
        context: Some(128),
        k_type: KvType::F32,
        v_type: KvType::F32,
        ..ContextOptions::default()
    };
    let mut context = Context::new(model, &options, &mut |_| ()).unwrap();
    let (sequence, _) = context.open_prefix(&[]).unwrap();
    let output = context.step(&[StepPart { sequence, tokens: text, rows: RowsWanted::All }]).unwrap();
    (0..output.rows).map(|row| output.row(row).to_vec()).collect()
}

#[test]
fn logits_of_tiny_models_are_those_of_numpy() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let text: Vec<u32> = serde_json::from_value(golden["text"].clone()).unwrap();
    let kept: Vec<usize> = serde_json::from_value(golden["kept"].clone()).unwrap();
    for (family, rows) in golden["logits"].as_object().unwrap() {
        let rows: Vec<Vec<f32>> = serde_json::from_value(rows.clone()).unwrap();
        let found = logits(family, &text);
        for (at, expected) in kept.iter().zip(&rows) {
            let error = nmse(&found[*at], expected);
            assert!(error < 1e-9, "{family}, after token {at}: error {error:.1e}");
        }
    }
}
