//! Opens arbitrary bytes as a model, reads all of it, and writes it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wootz_gguf::{Model, Writer};

#[path = "../../tests/common/mod.rs"]
mod common;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Model::from_bytes(bytes.to_vec()) else { return };
    let seen = common::visit(&model);
    let mut writer = Writer::new();
    for (key, value) in model.meta().iter() {
        writer.meta.set_value(key, value).expect("what was read can be set");
    }
    for tensor in model.tensors() {
        writer.tensor_from(&model, tensor).expect("what was read can be written");
    }
    let again =
        Model::from_bytes(writer.to_bytes().expect("writing succeeds")).expect("reading again succeeds");
    assert_eq!(common::visit(&again), seen);
});
