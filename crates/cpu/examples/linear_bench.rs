//! Speed of the matrix kernels beside the machine's limits, measured in the same run.
//!
//!     cargo run --release -p wootz-cpu --example linear_bench -- [--isa NAME] [--threads N] [--rounds N]
//!         [--cols N] [--rows N] [--tokens N] [--mib N] [--pick median|best] [TYPE...]
//!
//! For each type: the product with many tokens in Gop/s (two operations for a multiply-add), and the mat-vec over
//! `--mib` of weights in GB/s, each the median (or best) of all rounds and each with its share of the limit.

use std::time::Instant;
use wootz_cpu::limits::{int8_peak, read};
use wootz_cpu::memory::Buffer;
use wootz_cpu::pool::{Pool, default_workers};
use wootz_cpu::{ActForm, Activations, Isa, Linear, PackedMatrix, linear};
use wootz_quant::WeightType;

type Error = Box<dyn std::error::Error>;

struct Options {
    isa: Isa,
    threads: usize,
    rounds: usize,
    cols: usize,
    rows: usize,
    tokens: usize,
    mib: usize,
    best: bool,
    types: Vec<WeightType>,
}

fn options() -> Result<Options, Error> {
    let mut options = Options {
        isa: Isa::best(),
        threads: default_workers(),
        rounds: 5,
        cols: 2048,
        rows: 2048,
        tokens: 256,
        mib: 192,
        best: false,
        types: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if let Some(name) = arg.strip_prefix("--") {
            let value = args.next().ok_or("an option needs a value")?;
            match name {
                "isa" => options.isa = Isa::select(Some(Isa::from_name(&value)?))?,
                "threads" => options.threads = value.parse()?,
                "rounds" => options.rounds = value.parse()?,
                "cols" => options.cols = value.parse()?,
                "rows" => options.rows = value.parse()?,
                "tokens" => options.tokens = value.parse()?,
                "mib" => options.mib = value.parse()?,
                "pick" => options.best = value == "best",
                _ => return Err(format!("unknown option {arg}").into()),
            }
        } else {
            let ty = WeightType::ALL.iter().copied().find(|ty| ty.name() == arg);
            options.types.push(ty.ok_or_else(|| format!("unknown weight type {arg}"))?);
        }
    }
    if options.types.is_empty() {
        use WeightType::*;
        options.types = vec![Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K, F16];
    }
    Ok(options)
}

/// Median seconds of `rounds` runs; with `best` the least, which is what counts on a busy machine.
fn seconds(best: bool, rounds: usize, mut run: impl FnMut()) -> f64 {
    let mut seconds: Vec<f64> = (0..rounds.max(1))
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    pick(best, &mut seconds)
}

fn pick(best: bool, values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    if best { values[0] } else { values[values.len() / 2] }
}

/// Random codes with scales of ordinary size.
fn weights(ty: WeightType, rows: usize, cols: usize) -> Result<PackedMatrix, Error> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut matrix = PackedMatrix::zeroed(ty, rows, cols)?;
    let f16_scales: &[usize] = match ty {
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
        WeightType::Q2_K => &[80, 82],
        WeightType::Q3_K => &[108],
        WeightType::Q6_K => &[208],
        WeightType::MXFP4 => &[],
        _ => &[0],
    };
    for mut part in matrix.groups_mut(1) {
        let mut source = vec![0u8; part.source_bytes()];
        for byte in &mut source {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        for block in source.chunks_exact_mut(ty.block_bytes()) {
            for at in f16_scales {
                // Between 2^-8 and 2^-7; as the upper half of an f32 an ordinary number too.
                let end = block.len().min(*at + 2);
                block[end - 1] = 0x1c;
            }
        }
        part.pack(&source)?;
    }
    Ok(matrix)
}

fn share(value: f64, limit: Option<f64>) -> String {
    limit.map_or(String::new(), |limit| format!(" ({:.0} %)", 100.0 * value / limit))
}

fn main() -> Result<(), Error> {
    let o = options()?;
    let pool = Pool::new(o.threads)?;
    let fork = seconds(o.best, 101, || (0..100).for_each(|_| pool.run(&|_| ()))) / 100.0;
    let [wide, narrow] = [true, false].map(|wide| int8_peak(&pool, o.isa, wide).map(|peak| peak / 1e9));
    println!("{} with {} threads; fork and join {:.0} ns", o.isa, pool.workers(), fork * 1e9);
    if let (Some(wide), Some(narrow)) = (wide, narrow) {
        println!("integer peak {wide:.0} Gop/s with 8-bit codes, {narrow:.0} with shorter ones");
    }
    let mut plain = Buffer::zeroed(o.mib << 20)?;
    plain.fill(1);
    println!(
        "| type | [{}, {}] x {} tokens, Gop/s | mat-vec GB/s | plain read GB/s |",
        o.rows, o.cols, o.tokens
    );
    println!("|---|---|---|---|");
    for ty in &o.types {
        let matrix = weights(*ty, o.rows, o.cols)?;
        let x: Vec<f32> = (0..o.tokens * o.cols).map(|i| ((i * 7919) % 1001) as f32 / 500.0 - 1.0).collect();
        let mut acts = Activations::new(o.isa, matrix.form(), o.tokens, o.cols)?;
        acts.fill(&x)?;
        let mut out = vec![0.0; o.tokens * o.rows];
        let operations = 2.0 * (o.rows * o.cols * o.tokens) as f64;
        linear(&pool, &acts, [Linear { weights: (&matrix).into(), out: &mut out, stride: o.rows }])?;
        let elapsed = seconds(o.best, o.rounds, || {
            let _ =
                linear(&pool, &acts, [Linear { weights: (&matrix).into(), out: &mut out, stride: o.rows }]);
        });
        let gops = operations / elapsed / 1e9;
        let peak = match matrix.form() {
            ActForm::Float => None,
            _ if matches!(ty, WeightType::Q8_0 | WeightType::IQ4_NL | WeightType::IQ4_XS) => wide,
            _ => narrow,
        };

        let copies = ((o.mib << 20) / matrix.bytes()).max(1);
        let many = (0..copies).map(|_| weights(*ty, o.rows, o.cols)).collect::<Result<Vec<_>, _>>()?;
        let mut one = Activations::new(o.isa, matrix.form(), 1, o.cols)?;
        one.fill(&x[..o.cols])?;
        let (mut vectors, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..o.rounds {
            reads.push(seconds(true, 1, || read(&pool, &plain)));
            vectors.push(seconds(true, 1, || {
                for matrix in &many {
                    let job = Linear { weights: matrix.into(), out: &mut out[..o.rows], stride: o.rows };
                    let _ = linear(&pool, &one, [job]);
                }
            }));
        }
        let read = plain.len() as f64 / pick(o.best, &mut reads) / 1e9;
        let vector = (copies * matrix.bytes()) as f64 / pick(o.best, &mut vectors) / 1e9;
        let (gops_share, vector_share) = (share(gops, peak), share(vector, Some(read)));
        println!("| {ty} | {gops:.0}{gops_share} | {vector:.1}{vector_share} | {read:.1} |");
    }
    Ok(())
}
