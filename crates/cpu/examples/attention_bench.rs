//! Speed of attention and of storing keys and values: `attention_bench [threads] [cache type] [instruction set]`.
//!
//! Prefill is compared with a loop of multiply-adds in registers, decoding (over as many layers as fill 96 MB) with
//! plain reads of the same memory. Figures are the best of several runs.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;
use wootz_cpu::Isa;
use wootz_cpu::attention::{AttentionPlan, AttentionScratch};
use wootz_cpu::kv::{KvCache, KvSlots};
use wootz_cpu::pool::{Pool, default_workers};
use wootz_graph::op::Attention;
use wootz_graph::{BlockTable, CacheId, CacheSpec, KvType, StepInputs, TableSet};

const SHAPES: [(&str, u32, u32, u32); 6] = [
    ("SmolLM2-135M 9/3 x 64", 9, 3, 64),
    ("Qwen2.5-0.5B 14/2 x 64", 14, 2, 64),
    ("gemma3-270m 4/1 x 256", 4, 1, 256),
    ("Llama-1B 32/8 x 64", 32, 8, 64),
    ("Qwen2.5-7B 28/4 x 128", 28, 4, 128),
    ("8 heads alone 8/8 x 128", 8, 8, 128),
];

/// The best time of `runs` calls, in seconds.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

/// GFLOP/s of multiply-adds in registers.
fn peak(pool: &Pool) -> f64 {
    const CHAINS: usize = 12;
    const ROUNDS: usize = 2_000_000;
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    fn chains(seed: f32) -> f32 {
        let mut sums = [[seed; 8]; CHAINS];
        let (a, b) = (black_box([1.000_000_1f32; 8]), black_box([1e-9f32; 8]));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                for (s, (a, b)) in sum.iter_mut().zip(a.iter().zip(&b)) {
                    *s = s.mul_add(*a, *b);
                }
            }
        }
        sums.iter().flatten().sum()
    }
    #[cfg(target_arch = "x86_64")]
    if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
        return f64::NAN;
    }
    let seconds = best(3, || {
        pool.run(&|_| {
            #[cfg_attr(not(target_arch = "x86_64"), allow(unused_unsafe))]
            // SAFETY: the processor was asked for the features.
            let sum = unsafe { chains(black_box(1.0)) };
            black_box(sum);
        });
    });
    (2 * 8 * CHAINS * ROUNDS * pool.workers()) as f64 / seconds / 1e9
}

struct Model {
    attention: Attention,
    spec: CacheSpec,
    caches: Vec<KvCache>,
    blocks: Vec<u32>,
    ty: KvType,
}

fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0).collect()
}

impl Model {
    fn new(
        (_, heads, kv_heads, dim): (&str, u32, u32, u32),
        ty: KvType,
        positions: usize,
        layers: usize,
    ) -> Result<Model, Box<dyn Error>> {
        let attention = Attention {
            cache: CacheId(0),
            heads,
            scale: 1.0 / (dim as f32).sqrt(),
            softcap: None,
            window: None,
            causal: true,
            sinks: None,
        };
        let spec = CacheSpec { layer: 0, group: 0, kv_heads, k_dim: dim, v_dim: dim, state: 0 };
        let blocks = positions.div_ceil(32) as u32;
        let new = |_| KvCache::new(&spec, ty, ty, blocks as usize);
        let caches = (0..layers).map(new).collect::<Result<_, _>>()?;
        Ok(Model { attention, spec, caches, blocks: (0..blocks).collect(), ty })
    }

    /// Stores tokens at `positions` and lets them attend, in every layer; the best seconds of a layer for both.
    fn step(
        &mut self,
        isa: Isa,
        pool: &Pool,
        positions: std::ops::Range<usize>,
        runs: usize,
    ) -> Result<(f64, f64), Box<dyn Error>> {
        let n = positions.len();
        let tables = [BlockTable { first: 0, blocks: &self.blocks }];
        let groups = [TableSet { tables: &tables }];
        let positions: Vec<i32> = positions.map(|p| p as i32).collect();
        let (tokens, sequences) = (vec![0; n], vec![0; n]);
        let inputs = StepInputs {
            tokens: &tokens,
            positions: &positions,
            streams: &[],
            sequences: &sequences,
            outputs: &[],
            groups: &groups,
            hidden: &[],
        };
        let (heads, kv, dim) =
            (self.attention.heads as usize, self.spec.kv_heads as usize, self.spec.k_dim as usize);
        let (q, k) = (values(n * heads * dim), values(n * kv * dim));
        let mut out = vec![0.0; n * heads * dim];
        let slots = KvSlots::new(&inputs, 0)?;
        let plan = AttentionPlan::new(isa, &self.attention, &self.spec, &inputs, pool.workers())?;
        let mut scratch = AttentionScratch::new()?;
        let mut failed = None;
        let layers = self.caches.len() as f64;
        let store = best(runs, || {
            for cache in &mut self.caches {
                failed = cache.store(isa, pool, &slots, &k, &k).err().or(failed.take());
            }
        });
        let attend = best(runs, || {
            for cache in &self.caches {
                failed = plan.run(pool, cache, &q, None, &mut out, &mut scratch).err().or(failed.take());
            }
        });
        black_box(&out);
        match failed {
            Some(error) => Err(error.into()),
            None => Ok((store / layers, attend / layers)),
        }
    }

    /// GB/s of reading all caches.
    fn read(&self, pool: &Pool) -> f64 {
        let seconds = best(3, || {
            pool.run(&|worker| {
                let mut all = [0u64; 8];
                for cache in &self.caches {
                    for block in worker.part(cache.blocks().count()) {
                        for line in cache.blocks().block(block as u32).unwrap_or(&[]).as_chunks::<64>().0 {
                            for (sum, word) in all.iter_mut().zip(line.as_chunks::<8>().0) {
                                *sum ^= u64::from_ne_bytes(*word);
                            }
                        }
                    }
                }
                black_box(all);
            });
        });
        self.caches.iter().map(|cache| cache.blocks().bytes()).sum::<usize>() as f64 / seconds / 1e9
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map(|t| t.parse()).transpose()?.unwrap_or_else(default_workers);
    let ty = args.next().unwrap_or("f16".into());
    let ty = KvType::ALL.into_iter().find(|t| t.name() == ty).ok_or("unknown cache type")?;
    let isa = Isa::select(args.next().map(|name| Isa::from_name(&name)).transpose()?)?;
    let pool = Pool::new(threads)?;
    println!("{threads} threads, {isa}, {} cache", ty.name());
    println!("multiply-adds in registers: {:.0} GFLOP/s", peak(&pool));
    for shape in SHAPES {
        let (name, heads, _, dim) = shape;
        let mut model = Model::new(shape, ty, 512, 1)?;
        let (store, attend) = model.step(isa, &pool, 0..512, 7)?;
        let flops = 4.0 * f64::from(heads * dim) * (512.0 * 513.0 / 2.0);
        println!(
            "{name}: prefill 512 in {:.2} ms, {:.0} GFLOP/s; store {:.0} us",
            attend * 1e3,
            flops / attend / 1e9,
            store * 1e6
        );
        for depth in [512, 4096] {
            let layer = Model::new(shape, ty, depth, 1)?.caches[0].blocks().bytes();
            let mut model = Model::new(shape, ty, depth, (96 << 20) / layer + 1)?;
            for first in (0..depth).step_by(512) {
                model.step(isa, &pool, first..first + 512, 1)?;
            }
            let (store, attend) = model.step(isa, &pool, depth - 1..depth, 5)?;
            println!(
                "    decode at {depth} in {:.1} us, {:.1} GB/s (plain read {:.1}); store {:.1} us ({})",
                attend * 1e6,
                layer as f64 / attend / 1e9,
                model.read(&pool),
                store * 1e6,
                model.ty.name()
            );
        }
    }
    Ok(())
}
