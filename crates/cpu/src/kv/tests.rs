use super::*;
use crate::isa::{Op, Simd};
use crate::testing::{Random, bits, isas};
use wootz_graph::{BlockTable, TableSet};
use wootz_quant::WeightType;

pub(crate) fn spec(kv_heads: u32, k_dim: u32, v_dim: u32) -> CacheSpec {
    CacheSpec { layer: 0, group: 0, kv_heads, k_dim, v_dim, state: 0 }
}

/// What a cache of type `ty` gives back for a head, by the encoders and decoders of weights.
pub(crate) fn rounded(ty: KvType, x: &[f32]) -> Vec<f32> {
    let weight_type = match ty {
        KvType::F32 => WeightType::F32,
        KvType::F16 => WeightType::F16,
        KvType::BF16 => WeightType::BF16,
        KvType::Q8_0 => WeightType::Q8_0,
        KvType::Q4_0 => WeightType::Q4_0,
    };
    let mut bytes = vec![0; weight_type.row_bytes(x.len()).unwrap()];
    weight_type.encode(x, &mut bytes).unwrap();
    let mut out = vec![0.0; x.len()];
    weight_type.decode(&bytes, &mut out).unwrap();
    out
}

struct Decode<'a> {
    cache: &'a KvCache,
    block: u32,
    head: usize,
    k: &'a mut [f32],
    v: &'a mut [f32],
}

impl Op for Decode<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let layout = self.cache.layout();
        let (keys, values) =
            (self.cache.keys(self.block, self.head), self.cache.values(self.block, self.head));
        assert!(self.k.len() == layout.k_dim * BLOCK_TOKENS && self.v.len() == layout.v_pad * BLOCK_TOKENS);
        // SAFETY: the slices have the sizes of the layout.
        unsafe {
            for half in 0..2 {
                let out = self.k.as_mut_ptr().add(half * layout.k_dim * 16);
                panel::keys::<S>(layout.k_type, keys, layout.k_dim, half, out);
            }
            panel::values::<S>(layout.v_type, values, layout.v_pad, self.v.as_mut_ptr(), 512);
        }
    }
}

/// Two sequences: positions 30..97 and 5..6, in blocks that are out of order.
fn step<'a>(
    tokens: &'a [i32],
    positions: &'a [i32],
    sequences: &'a [u32],
    groups: &'a [TableSet<'a>],
) -> StepInputs<'a> {
    StepInputs { tokens, positions, streams: &[], sequences, outputs: &[], groups, hidden: &[] }
}

#[test]
fn a_cache_gives_back_what_its_type_keeps() {
    let positions: Vec<i32> = (30..97).chain(5..6).collect();
    let sequences: Vec<u32> = (0..68).map(|t| u32::from(t == 67)).collect();
    let tables = [BlockTable { first: 0, blocks: &[6, 2, 5, 0] }, BlockTable { first: 0, blocks: &[3] }];
    let groups = [TableSet { tables: &tables }];
    let tokens = vec![0; 68];
    let slots = KvSlots::new(&step(&tokens, &positions, &sequences, &groups), 0).unwrap();
    let mut random = Random::new(4);
    for (heads, k_dim, v_dim) in [(2, 64, 96), (1, 32, 32), (3, 72, 40), (1, 5, 3)] {
        let k = random.vector(68 * heads * k_dim);
        let v = random.vector(68 * heads * v_dim);
        let mut types =
            vec![(KvType::F32, KvType::F16), (KvType::F16, KvType::BF16), (KvType::BF16, KvType::F32)];
        if k_dim % 32 == 0 {
            types.extend([(KvType::Q8_0, KvType::Q4_0), (KvType::Q4_0, KvType::Q8_0)]);
        }
        for (k_type, v_type) in types {
            let mut contents = None;
            for (isa, workers) in isas().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let spec = spec(heads as u32, k_dim as u32, v_dim as u32);
                let mut cache = KvCache::new(&spec, k_type, v_type, 7).unwrap();
                assert!(cache.blocks().block_bytes() >= spec.block_bytes(k_type, v_type));
                cache.store(isa, &Pool::new(workers).unwrap(), &slots, &k, &v).unwrap();
                let pad = cache.layout().v_pad;
                for (token, (position, sequence)) in positions.iter().zip(&sequences).enumerate() {
                    let (block, at) = groups[0].slot(*sequence, *position as usize).unwrap();
                    for head in 0..heads {
                        let (mut keys, mut values) = (vec![9.0; k_dim * 32], vec![9.0; pad * 32]);
                        isa.dispatch(Decode { cache: &cache, block, head, k: &mut keys, v: &mut values });
                        let row = token * heads + head;
                        let key = |d: usize| keys[((at / 16) * k_dim + d) * 16 + at % 16];
                        let found: Vec<f32> = (0..k_dim).map(key).collect();
                        assert_eq!(bits(&found), bits(&rounded(k_type, &k[row * k_dim..][..k_dim])));
                        let value = |d: usize| values[((d / 16) * 32 + at) * 16 + d % 16];
                        let found: Vec<f32> = (0..v_dim).map(value).collect();
                        assert_eq!(bits(&found), bits(&rounded(v_type, &v[row * v_dim..][..v_dim])));
                    }
                }
                let all = cache.blocks().all().to_vec();
                assert!(*contents.get_or_insert(all.clone()) == all, "{isa} with {workers} workers");
                // Blocks that no position is in stay as they were.
                assert!(
                    [1, 4].iter().all(|b| cache.blocks().block(*b).unwrap().iter().all(|byte| *byte == 0))
                );
            }
        }
    }
}

#[test]
fn what_a_type_cannot_hold_comes_back_as_nan() {
    let groups = [TableSet { tables: &[BlockTable { first: 0, blocks: &[0] }] }];
    let slots = KvSlots::new(&step(&[0], &[7], &[0], &groups), 0).unwrap();
    for ty in [KvType::Q8_0, KvType::Q4_0] {
        let mut cache = KvCache::new(&spec(1, 32, 32), ty, ty, 1).unwrap();
        let mut x = [1.0; 32];
        x[3] = f32::INFINITY;
        cache.store(Isa::Scalar, &Pool::new(1).unwrap(), &slots, &x, &x).unwrap();
        let (mut k, mut v) = (vec![0.0; 1024], vec![0.0; 1024]);
        Isa::Scalar.dispatch(Decode { cache: &cache, block: 0, head: 0, k: &mut k, v: &mut v });
        let value = |at: usize, d: usize| v[((d / 16) * 32 + at) * 16 + d % 16];
        assert!((0..32).all(|d| k[d * 16 + 7].is_nan() && value(7, d).is_nan()));
        assert!((0..32).all(|d| k[d * 16 + 6] == 0.0 && value(6, d) == 0.0));
    }
}

#[test]
fn blocks_are_copied_saved_and_restored() {
    let mut cache = KvCache::new(&spec(2, 64, 64), KvType::F16, KvType::F16, 4).unwrap();
    assert_eq!(
        (cache.blocks().count(), cache.blocks().block_bytes(), cache.blocks().bytes()),
        (4, 16384, 65536)
    );
    let bytes: Vec<u8> = (0..16384).map(|i| (i % 251) as u8).collect();
    cache.blocks_mut().write_block(2, &bytes).unwrap();
    cache.blocks_mut().copy_block(2, 0).unwrap();
    assert_eq!(cache.blocks().block(0).unwrap(), bytes);
    assert_eq!(cache.blocks().block(2).unwrap(), bytes);
    assert!(cache.blocks().block(1).unwrap().iter().chain(cache.blocks().block(3).unwrap()).all(|b| *b == 0));
    let missing = CpuError::Index { what: "cache block", found: 4, limit: 4 };
    assert_eq!(cache.blocks().block(4).unwrap_err(), missing);
    assert_eq!(cache.blocks_mut().copy_block(4, 0).unwrap_err(), missing);
    assert_eq!(cache.blocks_mut().copy_block(0, 4).unwrap_err(), missing);
    assert_eq!(cache.blocks_mut().write_block(4, &bytes).unwrap_err(), missing);
    assert!(cache.blocks_mut().write_block(0, &bytes[1..]).is_err());
}

#[test]
fn impossible_caches_are_errors() {
    let new =
        |k_dim, k_type, blocks| KvCache::new(&spec(1, k_dim, 32), k_type, KvType::F16, blocks).map(|_| ());
    assert_eq!(new(40, KvType::Q8_0, 1), Err(CpuError::HeadSize { ty: "q8_0", dim: 40 }));
    assert_eq!(new(0, KvType::F32, 1), Err(CpuError::HeadSize { ty: "f32", dim: 0 }));
    assert!(matches!(new(64, KvType::F32, usize::MAX / 4), Err(CpuError::OutOfMemory { .. })));
    assert!(matches!(new(64, KvType::F32, 1 << 40), Err(CpuError::OutOfMemory { .. })));
}

#[test]
fn wrong_steps_are_errors() {
    let tables = [BlockTable { first: 1, blocks: &[0] }, BlockTable { first: 0, blocks: &[0, 1] }];
    let groups = [TableSet { tables: &tables }];
    let slots = |positions: &[i32], sequences: &[u32], group| {
        KvSlots::new(&step(&[0; 2], positions, sequences, &groups), group)
    };
    assert!(slots(&[32, 33], &[0, 0], 0).is_ok());
    let missing = |found, limit| CpuError::Index { what: "position in a cache block", found, limit };
    assert_eq!(slots(&[31, 32], &[0, 0], 0).unwrap_err(), missing(31, 64));
    assert_eq!(slots(&[63, 64], &[0, 0], 0).unwrap_err(), missing(64, 64));
    assert_eq!(slots(&[-1, 1], &[0, 0], 0).unwrap_err(), missing(-1, 64));
    assert_eq!(slots(&[3, 1], &[0, 2], 0).unwrap_err(), missing(3, 64));
    assert!(matches!(slots(&[32, 33], &[0, 0], 1), Err(CpuError::Index { what: "cache group", .. })));
    assert_eq!(slots(&[33, 5], &[0, 1], 0).unwrap_err(), CpuError::SharedBlock { block: 0 });

    let good = slots(&[40, 41], &[1, 1], 0).unwrap();
    let pool = Pool::new(1).unwrap();
    let mut cache = KvCache::new(&spec(1, 8, 8), KvType::F32, KvType::F32, 1).unwrap();
    let x = [0.0; 16];
    let missing = CpuError::Index { what: "cache block", found: 1, limit: 1 };
    assert_eq!(cache.store(Isa::Scalar, &pool, &good, &x, &x), Err(missing));
    let mut cache = KvCache::new(&spec(1, 8, 8), KvType::F32, KvType::F32, 2).unwrap();
    assert!(cache.store(Isa::Scalar, &pool, &good, &x[1..], &x).is_err());
    assert!(cache.store(Isa::Scalar, &pool, &good, &x, &x[1..]).is_err());
    assert!(cache.store(Isa::Scalar, &pool, &good, &x, &x).is_ok());
}
