//! Speed of decoders and encoders on one core, in millions of elements a second.
//!
//! `cargo run --release -p wootz-quant --example speed [TYPE...]`

use std::time::Instant;
use wootz_quant::{QuantError, WeightType};

const ELEMENTS: usize = 1 << 16;
const SECONDS: f64 = 0.1;

fn main() -> Result<(), QuantError> {
    let mut values: Vec<f32> = (0..ELEMENTS).map(|i| ((i * 7919) % 10_007) as f32 / 5_000.0 - 1.0).collect();
    println!("{:8} {:>8} {:>8}", "type", "decode", "encode");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for &ty in WeightType::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|name| WeightType::from_name(name) == Some(ty)) {
            continue;
        }
        let mut blocks: Vec<u8> = (0..ELEMENTS / ty.block_elements() * ty.block_bytes())
            .map(|i| ((i * 7919) >> 3) as u8 & 0x3F)
            .collect();
        let encode = if ty.can_encode() {
            format!("{:8.0}", speed(|| ty.encode(&values, &mut blocks))?)
        } else {
            format!("{:>8}", "-")
        };
        let mut decoded = vec![0.0; ELEMENTS];
        println!("{:8} {:8.0} {encode}", ty.name(), speed(|| ty.decode(&blocks, &mut decoded))?);
        // What was decoded must be used.
        values[0] += decoded[0] * 1e-9;
    }
    Ok(())
}

fn speed(mut f: impl FnMut() -> Result<(), QuantError>) -> Result<f64, QuantError> {
    let start = Instant::now();
    let mut runs = 0.0;
    while start.elapsed().as_secs_f64() < SECONDS {
        f()?;
        runs += 1.0;
    }
    Ok(runs * ELEMENTS as f64 / start.elapsed().as_secs_f64() / 1e6)
}
