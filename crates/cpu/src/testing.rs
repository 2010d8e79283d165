//! What the tests of several modules share.

use crate::Isa;

/// Every instruction set of this processor, the plain one first.
pub(crate) fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

/// A small random generator (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    /// Roughly normal: the sum of four uniform numbers, with deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum();
        (sum * 3f64.sqrt()) as f32
    }

    pub(crate) fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Square error over square size.
pub(crate) fn nmse(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    error / expected.iter().map(|e| e * e).sum::<f64>().max(1e-30)
}
