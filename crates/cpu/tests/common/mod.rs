//! Random weights and activations for the tests of this crate.

#![allow(unreachable_pub)]
use wootz_cpu::Isa;
use wootz_quant::WeightType;

/// A small generator of reproducible numbers (xorshift).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Offsets of the f16 scales in a block.
fn f16_fields(ty: WeightType) -> &'static [usize] {
    use WeightType::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K | Q8_1 => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        Q1_0 | Q2_0 => &[0],
        F16 => &[0],
        _ => &[],
    }
}

/// GGUF bytes of `[rows, cols]`: random bits, with scales of ordinary size.
pub fn random_weights(ty: WeightType, rows: usize, cols: usize, rng: &mut Rng) -> Vec<u8> {
    let bytes = (0..rows * ty.row_bytes(cols).unwrap()).map(|_| (rng.next() >> 24) as u8).collect();
    with_scales(ty, bytes, rng)
}

/// `bytes` of any content with random scales of ordinary size.
pub fn with_scales(ty: WeightType, mut bytes: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for at in f16_fields(ty) {
            let value = half::f16::from_f32(rng.unit() * 0.05);
            block[*at..*at + 2].copy_from_slice(&value.to_le_bytes());
        }
        match ty {
            WeightType::F32 => block.copy_from_slice(&rng.unit().to_le_bytes()),
            WeightType::F64 => block.copy_from_slice(&f64::from(rng.unit()).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&rng.unit().to_le_bytes()[2..]),
            WeightType::Q8_K => block[..4].copy_from_slice(&(rng.unit() * 0.05).to_le_bytes()),
            WeightType::MXFP4 => block[0] = 120 + (rng.next() % 9) as u8,
            // The f16 scale lies in the four high nibbles of the scale words.
            WeightType::IQ1_M => {
                for (i, nibble) in [0, 0, 8, 2].into_iter().enumerate() {
                    let high = &mut block[48 + 2 * i + 1];
                    *high = (*high & 15) | (nibble << 4);
                }
            }
            _ => {}
        }
    }
    bytes
}

/// Activations with a few large values among small ones.
pub fn random_activations(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| rng.unit() * if rng.next().is_multiple_of(37) { 20.0 } else { 1.0 }).collect()
}

/// The instruction sets that this processor can test.
pub fn isas() -> Vec<Isa> {
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    println!(
        "instruction sets exercised: {}",
        isas.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
    );
    isas
}
