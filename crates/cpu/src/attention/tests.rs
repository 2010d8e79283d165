use super::*;
use crate::kv::KvSlots;
use crate::kv::tests::{rounded, spec};
use crate::testing::{Random, bits, isas, nmse};
use wootz_graph::{BlockTable, CacheId, KvType, TableSet};

/// Some sequences with everything that their attention depends on.
struct Case {
    attention: Attention,
    spec: CacheSpec,
    types: (KvType, KvType),
    sinks: Option<Vec<f32>>,
    sequences: Vec<Tokens>,
    /// Physical blocks by sequence.
    blocks: Vec<Vec<u32>>,
}

/// Queries, keys and values of one sequence, by position.
struct Tokens {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Tokens of a step: sequence and positions.
type Part = (u32, Range<usize>);

fn attributes(heads: u32, k_dim: u32) -> Attention {
    Attention {
        cache: CacheId(0),
        heads,
        scale: 1.0 / (k_dim as f32).sqrt(),
        softcap: None,
        window: None,
        causal: true,
        sinks: None,
    }
}

impl Case {
    fn new(heads: u32, kv_heads: u32, k_dim: u32, v_dim: u32, lengths: &[usize]) -> Case {
        let mut random = Random::new(u64::from(heads * 1000 + k_dim) + lengths.iter().sum::<usize>() as u64);
        let sequences = lengths
            .iter()
            .map(|n| Tokens {
                // Large enough for some weights to dominate.
                q: random.vector(n * (heads * k_dim) as usize).into_iter().map(|x| 2.0 * x).collect(),
                k: random.vector(n * (kv_heads * k_dim) as usize),
                v: random.vector(n * (kv_heads * v_dim) as usize),
            })
            .collect();
        let mut free: Vec<u32> = (0..lengths.iter().map(|n| n.div_ceil(32)).sum::<usize>() as u32).collect();
        for i in 1..free.len() {
            free.swap(i, random.below(i + 1));
        }
        let blocks = lengths.iter().map(|n| free.split_off(free.len() - n.div_ceil(32))).collect();
        let spec = spec(kv_heads, k_dim, v_dim);
        let types = (KvType::F16, KvType::F16);
        Case { attention: attributes(heads, k_dim), spec, types, sinks: None, sequences, blocks }
    }

    fn with(self, change: impl FnOnce(&mut Case)) -> Case {
        let mut case = self;
        change(&mut case);
        case
    }

    fn widths(&self) -> (usize, usize, usize, usize) {
        let (h, kv) = (self.attention.heads as usize, self.spec.kv_heads as usize);
        let (k, v) = (self.spec.k_dim as usize, self.spec.v_dim as usize);
        (h * k, kv * k, kv * v, h * v)
    }

    /// Results by sequence, `[positions, heads * v_dim]`, of steps that hold every position once.
    fn run(&self, isa: Isa, workers: usize, steps: &[Vec<Part>]) -> Vec<Vec<f32>> {
        let (qw, kw, vw, ow) = self.widths();
        let blocks = self.blocks.iter().map(Vec::len).sum();
        let mut cache = KvCache::new(&self.spec, self.types.0, self.types.1, blocks).unwrap();
        // What nobody has written yet must not matter: here it is not a number in every type.
        for block in 0..blocks as u32 {
            let bytes = vec![0xff; cache.blocks().block_bytes()];
            cache.blocks_mut().write_block(block, &bytes).unwrap();
        }
        let pool = Pool::new(workers).unwrap();
        let mut scratch = AttentionScratch::new().unwrap();
        let mut out: Vec<Vec<f32>> =
            self.sequences.iter().map(|s| vec![f32::NAN; s.q.len() / qw * ow]).collect();
        for step in steps {
            let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
            let (mut positions, mut numbers) = (Vec::new(), Vec::new());
            let mut tables: Vec<BlockTable<'_>> =
                self.blocks.iter().map(|b| BlockTable { first: 0, blocks: b }).collect();
            for (sequence, range) in step {
                let tokens = &self.sequences[*sequence as usize];
                q.extend_from_slice(&tokens.q[range.start * qw..range.end * qw]);
                k.extend_from_slice(&tokens.k[range.start * kw..range.end * kw]);
                v.extend_from_slice(&tokens.v[range.start * vw..range.end * vw]);
                positions.extend(range.clone().map(|p| p as i32));
                numbers.extend(range.clone().map(|_| *sequence));
                // Blocks that have left the window are given back.
                let gone =
                    self.attention.window.map_or(0, |w| (range.start + 1).saturating_sub(w as usize) / 32);
                let blocks = &self.blocks[*sequence as usize];
                tables[*sequence as usize] = BlockTable { first: gone as u32, blocks: &blocks[gone..] };
            }
            let groups = [TableSet { tables: &tables }];
            let tokens = vec![0; positions.len()];
            let inputs = StepInputs {
                tokens: &tokens,
                positions: &positions,
                streams: &[],
                sequences: &numbers,
                outputs: &[],
                groups: &groups,
                hidden: &[],
            };
            cache.store(isa, &pool, &KvSlots::new(&inputs, 0).unwrap(), &k, &v).unwrap();
            let plan = AttentionPlan::new(isa, &self.attention, &self.spec, &inputs, workers).unwrap();
            let mut result = vec![f32::NAN; positions.len() * ow];
            plan.run(&pool, &cache, &q, self.sinks.as_deref(), &mut result, &mut scratch).unwrap();
            let mut rest = &result[..];
            for (sequence, range) in step {
                let (part, after) = rest.split_at(range.len() * ow);
                out[*sequence as usize][range.start * ow..range.end * ow].copy_from_slice(part);
                rest = after;
            }
        }
        out
    }

    /// All sequences whole, in one step.
    fn whole(&self) -> Vec<Vec<Part>> {
        let (qw, ..) = self.widths();
        let parts = self.sequences.iter().enumerate();
        vec![parts.map(|(s, t)| (s as u32, 0..t.q.len() / qw)).collect()]
    }

    /// The definition, in f64, for one position of one sequence of `len` positions.
    fn exact(&self, sequence: usize, position: usize, len: usize) -> Vec<f64> {
        let (qw, kw, vw, _) = self.widths();
        let (kd, vd) = (self.spec.k_dim as usize, self.spec.v_dim as usize);
        let tokens = &self.sequences[sequence];
        let a = &self.attention;
        let end = if a.causal { position + 1 } else { len };
        let start = a.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
        let share = (a.heads / self.spec.kv_heads) as usize;
        let mut out = Vec::new();
        for h in 0..a.heads as usize {
            let q = &tokens.q[position * qw + h * kd..][..kd];
            let head = h / share;
            let score = |p: usize| {
                let k = rounded(self.types.0, &tokens.k[p * kw + head * kd..][..kd]);
                let dot: f64 = q.iter().zip(&k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let s = dot * f64::from(a.scale);
                a.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            };
            // Any shift gives the same weights; this one keeps them in range.
            let shift = score(end - 1);
            let weights: Vec<f64> = (start..end).map(|p| (score(p) - shift).exp()).collect();
            let sink = self.sinks.as_ref().map_or(0.0, |s| (f64::from(s[h]) - shift).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            let mut y = vec![0.0; vd];
            for (p, w) in (start..end).zip(&weights) {
                let v = rounded(self.types.1, &tokens.v[p * vw + head * vd..][..vd]);
                y.iter_mut().zip(&v).for_each(|(y, v)| *y += w / sum * f64::from(*v));
            }
            out.extend(y);
        }
        out
    }

    /// Checks some positions of every sequence against the definition.
    fn check(&self, out: &[Vec<f32>]) {
        let (qw, _, _, ow) = self.widths();
        for (s, (tokens, out)) in self.sequences.iter().zip(out).enumerate() {
            let len = tokens.q.len() / qw;
            let far = if len > 600 { 397 } else { 13 };
            for p in (0..len).filter(|p| p % far == 0 || p + 1 == len) {
                let error = nmse(&out[p * ow..][..ow], &self.exact(s, p, len));
                assert!(error < 1e-11, "sequence {s}, position {p}: {error:e}");
            }
        }
    }

    /// Checks every instruction set and several splits of the work against the definition and each other.
    fn check_all(&self, steps: &[Vec<Vec<Part>>]) {
        let whole = self.run(Isa::best(), 1, &self.whole());
        self.check(&whole);
        let whole: Vec<_> = whole.iter().map(|o| bits(o)).collect();
        let same = |isa, workers, steps: &[Vec<Part>]| {
            let found: Vec<_> = self.run(isa, workers, steps).iter().map(|o| bits(o)).collect();
            assert!(found == whole, "{isa}, {workers} workers, steps {steps:?}");
        };
        for isa in isas() {
            same(isa, 1, &self.whole());
        }
        for steps in steps {
            same(Isa::best(), 1, steps);
            same(Isa::best(), 3, steps);
        }
    }
}

/// One sequence in chunks of these lengths, again and again.
fn chunked(len: usize, chunks: &[usize]) -> Vec<Vec<Part>> {
    let (mut steps, mut at) = (Vec::new(), 0);
    for chunk in chunks.iter().cycle() {
        if at == len {
            break;
        }
        let end = len.min(at + chunk);
        steps.push(vec![(0, at..end)]);
        at = end;
    }
    steps
}

#[test]
fn heads_of_every_shape() {
    for (heads, kv_heads, k_dim, v_dim) in [
        (9, 3, 64, 64),
        (14, 2, 64, 64),
        (4, 1, 256, 256),
        (2, 2, 80, 80),
        (3, 1, 96, 96),
        (2, 1, 112, 112),
        (4, 4, 128, 128),
        (2, 2, 192, 128),
        (8, 1, 576, 512),
        (50, 1, 8, 8),
        (2, 1, 40, 24),
        (2, 2, 7, 5),
    ] {
        Case::new(heads, kv_heads, k_dim, v_dim, &[75])
            .check_all(&[chunked(75, &[1]), chunked(75, &[33, 2, 17])]);
    }
}

#[test]
fn caches_of_every_type() {
    for k_type in KvType::ALL {
        for v_type in KvType::ALL {
            Case::new(6, 2, 64, 96, &[70])
                .with(|c| c.types = (k_type, v_type))
                .check_all(&[chunked(70, &[1]), chunked(70, &[40, 3])]);
        }
    }
}

#[test]
fn options_of_attention() {
    let base = || Case::new(6, 2, 32, 32, &[300]);
    let steps = [chunked(300, &[1]), chunked(300, &[100, 7, 64])];
    for window in [1, 2, 31, 32, 33, 100, 299, 1000] {
        base().with(|c| c.attention.window = Some(window)).check_all(&steps);
    }
    base().with(|c| c.attention.softcap = Some(5.0)).check_all(&steps);
    base().with(|c| c.attention.scale = 2.0).check_all(&steps);
    let sinks = |c: &mut Case| c.sinks = Some(vec![0.0, 3.0, -50.0, 20.0, 1.0, f32::NEG_INFINITY]);
    base().with(sinks).check_all(&steps);
    base().with(sinks).with(|c| c.attention.window = Some(40)).check_all(&steps);
    base().with(|c| c.attention.causal = false).check_all(&[]);
    base().with(|c| (c.attention.causal, c.attention.window) = (false, Some(20))).check_all(&[]);
}

#[test]
fn sequences_do_not_touch_each_other() {
    let case = Case::new(4, 2, 32, 32, &[70, 1, 33, 200]);
    let mixed = vec![
        vec![(3, 0..150), (0, 0..1)],
        vec![(0, 1..40), (2, 0..32), (1, 0..1), (3, 150..151)],
        vec![(3, 151..200), (2, 32..33), (0, 40..70)],
    ];
    let singles = vec![vec![(0, 0..70)], vec![(1, 0..1)], vec![(2, 0..33)], vec![(3, 0..200)]];
    case.check_all(&[mixed, singles]);
}

#[test]
fn long_contexts_in_segments() {
    let last = |chunk: usize| {
        let mut steps = chunked(4096, &[chunk]);
        steps.push(vec![(0, 4096..4097)]);
        steps
    };
    Case::new(3, 1, 8, 16, &[4097]).check_all(&[last(1000), last(4096)]);
    Case::new(2, 1, 16, 16, &[1500])
        .with(|c| c.attention.window = Some(700))
        .check_all(&[chunked(1500, &[512]), chunked(1500, &[1])]);
    Case::new(2, 1, 16, 16, &[1100])
        .with(|c| c.sinks = Some(vec![1.0, 9.0]))
        .check_all(&[chunked(1100, &[1])]);
}

#[test]
fn a_non_number_stays_with_those_who_see_it() {
    let len = 200;
    for bad in [f32::NAN, f32::INFINITY] {
        for in_key in [true, false] {
            let good = Case::new(6, 2, 32, 32, &[len]);
            let expected = good.run(Isa::best(), 1, &good.whole());
            let case = good.with(|c| {
                let x = if in_key { &mut c.sequences[0].k } else { &mut c.sequences[0].v };
                x[100 * 64 + 3] = bad;
            });
            let found = case.run(Isa::best(), 1, &case.whole());
            let row = 6 * 32;
            assert_eq!(bits(&found[0][..100 * row]), bits(&expected[0][..100 * row]));
            assert!(
                found[0][100 * row..].chunks(row).all(|r| r.iter().any(|x| !x.is_finite()))
                    || in_key && bad == f32::INFINITY
            );
            let single = case.run(Isa::best(), 1, &chunked(len, &[1]));
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(found[0].iter().zip(&single[0]).all(same));
        }
    }
}

#[test]
fn extreme_scores_stay_finite() {
    // Nearly all weights are exactly 0 or 1, and every better score makes what was before fade to 0.
    for scale in [1e4, 1e30, -1e4] {
        let case = Case::new(2, 1, 32, 32, &[150]).with(|c| c.attention.scale = scale);
        let out = case.run(Isa::best(), 1, &case.whole());
        assert!(out[0].iter().all(|x| x.is_finite()));
        for isa in isas() {
            assert_eq!(bits(&case.run(isa, 1, &chunked(150, &[1, 40]))[0]), bits(&out[0]));
        }
    }
    // Equal scores have equal weights, however large they are.
    let case = Case::new(2, 1, 32, 32, &[150]).with(|c| {
        let first = c.sequences[0].k[..32].to_vec();
        c.sequences[0].k.chunks_mut(32).for_each(|k| k.copy_from_slice(&first));
        c.attention.scale = 1e4;
    });
    case.check_all(&[chunked(150, &[1])]);
}

/// One token at position 5.
fn token_at_5<'a>(groups: &'a [TableSet<'a>]) -> StepInputs<'a> {
    StepInputs {
        tokens: &[0],
        positions: &[5],
        streams: &[],
        sequences: &[0],
        outputs: &[],
        groups,
        hidden: &[],
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero() {
    let tables = [BlockTable { first: 3, blocks: &[0] }];
    let groups = [TableSet { tables: &tables }];
    let inputs = token_at_5(&groups);
    let (attention, spec) = (attributes(2, 16), spec(1, 16, 16));
    let plan = AttentionPlan::new(Isa::best(), &attention, &spec, &inputs, 1).unwrap();
    let cache = KvCache::new(&spec, KvType::F32, KvType::F32, 1).unwrap();
    let (mut out, mut scratch) = ([7.0; 32], AttentionScratch::new().unwrap());
    plan.run(&Pool::new(1).unwrap(), &cache, &[1.0; 32], None, &mut out, &mut scratch).unwrap();
    assert_eq!(out, [0.0; 32]);
    assert!(scratch.bytes() > 0);
}

#[test]
fn wrong_sizes_are_errors() {
    let tables = [BlockTable { first: 0, blocks: &[1] }];
    let groups = [TableSet { tables: &tables }];
    let inputs = token_at_5(&groups);
    let (attention, shape) = (attributes(2, 16), spec(1, 16, 8));
    let plan = |a: &Attention, s: &CacheSpec, i: &StepInputs<'_>| AttentionPlan::new(Isa::best(), a, s, i, 1);
    assert!(plan(&attributes(3, 16), &spec(2, 16, 8), &inputs).is_err());
    assert!(plan(&attention, &spec(0, 16, 8), &inputs).is_err());
    assert!(plan(&attention, &CacheSpec { group: 1, ..shape.clone() }, &inputs).is_err());
    assert!(plan(&attention, &shape, &StepInputs { sequences: &[1], ..inputs }).is_err());
    assert!(plan(&attention, &shape, &StepInputs { sequences: &[], ..inputs }).is_err());
    assert!(plan(&attention, &shape, &StepInputs { positions: &[-5], ..inputs }).is_err());

    let plan = plan(&attention, &shape, &inputs).unwrap();
    let pool = Pool::new(1).unwrap();
    let run = |shape: &CacheSpec, blocks, q: usize, sinks: Option<&[f32]>, out: usize| {
        let cache = KvCache::new(shape, KvType::F32, KvType::F32, blocks).unwrap();
        let mut scratch = AttentionScratch::new().unwrap();
        plan.run(&pool, &cache, &vec![0.0; q], sinks, &mut vec![0.0; out], &mut scratch)
    };
    assert_eq!(run(&shape, 2, 32, None, 16), Ok(()));
    assert_eq!(
        run(&shape, 1, 32, None, 16),
        Err(CpuError::Index { what: "cache block", found: 1, limit: 1 })
    );
    assert!(run(&spec(2, 16, 8), 2, 32, None, 16).is_err());
    assert!(run(&spec(1, 8, 8), 2, 32, None, 16).is_err());
    assert!(run(&spec(1, 16, 16), 2, 32, None, 16).is_err());
    assert!(run(&shape, 2, 31, None, 16).is_err());
    assert!(run(&shape, 2, 32, None, 17).is_err());
    assert!(run(&shape, 2, 32, Some(&[0.0]), 16).is_err());
}
