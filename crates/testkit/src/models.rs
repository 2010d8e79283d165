//! Real models that tests use.

use std::path::PathBuf;

use wootz_gguf::{Model, Writer};
use wootz_quant::WeightType;

/// The cache folder of tests: `WOOTZ_TEST_CACHE`, or `.cache` in the repository.
pub fn cache_dir() -> PathBuf {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("WOOTZ_TEST_CACHE").map_or_else(|| repository.join(".cache"), PathBuf::from)
}

/// A model file that `scripts/fetch-test-models.py` fetches.
///
/// # Panics
/// It has not been fetched: tests do not pass by leaving things out.
pub fn fetched(file: &str) -> PathBuf {
    let path = optional(file);
    path.unwrap_or_else(|| panic!("{file} is missing: run python3 scripts/fetch-test-models.py first"))
}

/// A model file of longer runs, if it is in the folder of models.
pub fn optional(file: &str) -> Option<PathBuf> {
    Some(cache_dir().join("models").join(file)).filter(|p| p.exists())
}

/// A model with its matrices decoded and encoded again as another type, as GGUF bytes.
///
/// # Panics
/// The file is not sound, or a matrix cannot have the type.
pub fn requantised(model: &Model, ty: WeightType) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in model.meta().iter() {
        writer.meta.set_value(key, value).expect("keys of a sound file");
    }
    for tensor in model.tensors() {
        let data = model.read_tensor(tensor).expect("a readable file");
        if tensor.rows() == 1 {
            writer.tensor(&tensor.name, tensor.dims(), tensor.ty, data).expect("dimensions of a sound file");
            continue;
        }
        let mut elements = vec![0.0; tensor.elements()];
        tensor.ty.decode(&data, &mut elements).expect("whole blocks");
        let bytes = crate::memory::encode(ty, &elements);
        writer.tensor(&tensor.name, tensor.dims(), ty, bytes).expect("dimensions of a sound file");
    }
    writer.to_bytes().expect("memory for a small model")
}
