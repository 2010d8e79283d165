//! Compiled kernels, written by `scripts/build-cuda`.

use std::borrow::Cow;

/// Lists the files of kernels, by their names without an ending.
macro_rules! files {
    ($($name:literal,)*) => {
        const FILES: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../code/", $name, ".fatbin")))),*];
    };
}

files! {
    "acts",
    "attend",
    "attention_any",
    "batch_bf16",
    "batch_f16",
    "batch_mxfp4",
    "batch_q4_0",
    "batch_q4_1",
    "batch_q4_k",
    "batch_q5_k",
    "batch_q6_k",
    "batch_q8_0",
    "elementwise",
    "embed",
    "expert_batch_bf16",
    "expert_batch_mxfp4",
    "expert_batch_q4_0",
    "expert_batch_q4_k",
    "expert_batch_q5_k",
    "expert_batch_q6_k",
    "expert_batch_q8_0",
    "expert_hopper_bf16",
    "expert_hopper_mxfp4",
    "expert_hopper_q4_0",
    "expert_hopper_q4_k",
    "expert_hopper_q5_k",
    "expert_hopper_q6_k",
    "expert_hopper_q8_0",
    "expert_matvec",
    "experts",
    "few",
    "flash",
    "hopper_bf16",
    "hopper_f16",
    "hopper_mxfp4",
    "hopper_q4_0",
    "hopper_q4_1",
    "hopper_q4_k",
    "hopper_q5_k",
    "hopper_q6_k",
    "hopper_q8_0",
    "inputs",
    "limits",
    "linear_any",
    "matvec",
    "norm",
    "pick",
    "recurrent",
    "repack",
    "rope",
    "route",
    "router",
    "store_kv",
}

/// The environment variable of a folder whose code is taken in place of the embedded one, in builds with checks: for
/// work on kernels.
#[cfg(debug_assertions)]
const FOLDER_VARIABLE: &str = "WOOTZ_CUDA_CODE";

/// The code of a file of kernels, for every architecture.
pub(crate) fn find(file: &str) -> Option<Cow<'static, [u8]>> {
    #[cfg(debug_assertions)]
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        let path = std::path::Path::new(&folder).join(file).with_extension("fatbin");
        return std::fs::read(path).ok().map(Cow::Owned);
    }
    FILES.iter().find(|(name, _)| *name == file).map(|(_, code)| Cow::Borrowed(*code))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::FILES;
    use crate::testing::{folder, sources};

    #[test]
    fn every_file_of_kernels_has_code() {
        let names: Vec<String> = sources()
            .into_iter()
            .filter_map(|(name, _)| name.strip_suffix(".cu").map(str::to_owned))
            .collect();
        assert_eq!(FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
        // Fat binaries begin with this number.
        assert!(FILES.iter().all(|(_, code)| code.starts_with(&0xba55_ed50u32.to_le_bytes())));
    }

    /// `scripts/build-cuda` writes the hash of what it compiled.
    #[test]
    fn the_code_is_that_of_the_sources() {
        let mut hash = Sha256::new();
        for (name, text) in sources() {
            hash.update(name.as_bytes());
            hash.update([0]);
            hash.update(text.as_bytes());
            hash.update([0]);
        }
        let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        let recorded = std::fs::read_to_string(folder().join("code/sources.sha256")).unwrap();
        assert_eq!(recorded.trim(), found, "kernels have changed: run scripts/build-cuda");
    }
}
