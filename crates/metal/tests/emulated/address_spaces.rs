//! Every kernel keeps to its address spaces: checked by the compiler, for every weight type and cache type.

use wootz_metal::library::{Function, Library, Sources};
use wootz_metal::signature;
use wootz_quant::WeightType;

use crate::common::toolchain;

const CACHE_TYPES: [&str; 5] = ["KvF32", "KvF16", "KvBF16", "KvQ8_0", "KvQ4_0"];

/// Types that matrices can have.
fn matrix_types() -> impl Iterator<Item = WeightType> {
    use WeightType::*;
    WeightType::ALL.iter().copied().filter(|t| !matches!(t, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K))
}

/// One variant of each kernel file, or several where macros choose code.
fn libraries() -> Vec<Library> {
    let mut list: Vec<Library> = ["elementwise", "norm", "route", "sampling"].map(Library::plain).into();
    list.extend(matrix_types().map(|ty| Library::plain("embed").with("WEIGHT", ty)));
    for ty in [WeightType::F16, WeightType::Q4_K] {
        for batch in [1, 4] {
            list.push(Library::plain("matvec").with("WEIGHT", ty).with("BATCH", batch));
        }
        for matrix in [0, 1] {
            list.push(Library::plain("matmul").with("WEIGHT", ty).with("SIMDGROUP_MATRIX", matrix));
        }
    }
    list.push(
        Library::plain("recurrent").with("STATE", 16).with("LANES", 4).with("HEAD", 32).with("WIDE", 32),
    );
    for ty in CACHE_TYPES {
        list.push(Library::plain("heads").with("K_TYPE", ty).with("V_TYPE", ty));
        let attention = Library::plain("attention").with("K_TYPE", ty).with("V_TYPE", ty);
        list.push(attention.with("K_DIM", 128).with("V_DIM", 64));
        for (file, k_dim, v_dim) in [("attention_tiles", 64, 128), ("attention_wide", 576, 512)] {
            let tiles = Library::plain(file).with("K_TYPE", ty).with("V_TYPE", ty);
            list.push(tiles.with("K_DIM", k_dim).with("V_DIM", v_dim));
        }
    }
    list
}

/// A function of a library, so that its constants are known.
fn function(sources: &Sources, library: Library) -> Function {
    let kernels = signature::kernels(&sources.text(library.file).unwrap()).unwrap();
    // Names of kernels live as long as the process.
    let name: &'static str = Box::leak(kernels[0].name.clone().into_boxed_str());
    Function::new(library, name).set("simd_width", 32u32)
}

#[test]
fn every_kernel_keeps_to_its_address_spaces() {
    let (sources, toolchain) = (Sources::default(), toolchain());
    let libraries = libraries();
    for family in sources.families() {
        assert!(libraries.iter().any(|l| l.file == family), "{family} is not checked");
    }
    for library in libraries {
        let function = function(&sources, library);
        toolchain.check_address_spaces(&sources, &function).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_pointer_of_another_address_space_is_refused() {
    let altered = Sources::default()
        .altered(
            "norm.metal",
            "    device const float* from = x + first;",
            "    constant float* from = x + first;",
        )
        .unwrap();
    let function = function(&altered, Library::plain("norm"));
    assert!(toolchain().check_address_spaces(&altered, &function).is_err());
}
