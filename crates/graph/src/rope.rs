//! What backends compute a rotary embedding from.

use std::f64::consts::PI;

use crate::op::{Rope, SectionOrder, Sections};

impl Sections {
    /// Streams of positions.
    pub const STREAMS: u32 = 4;

    /// The stream that turns a pair.
    pub fn stream(&self, pair: u32) -> u32 {
        let at = pair % self.counts.iter().sum::<u32>().max(1);
        match self.order {
            SectionOrder::Runs | SectionOrder::Vision => self.run(at).0,
            SectionOrder::Interleaved if at < 3 * self.counts[at as usize % 3] => at % 3,
            SectionOrder::Interleaved => 3,
        }
    }

    /// The stream of a pair in runs, and its number in the section.
    fn run(&self, at: u32) -> (u32, u32) {
        let mut first = 0;
        for (stream, count) in (0..).zip(self.counts) {
            if at < first + count {
                return (stream, at - first);
            }
            first += count;
        }
        (Sections::STREAMS - 1, at)
    }
}

impl Rope {
    /// Radians that each pair turns per position of its stream, by the formulas of [`Rope`]; `factors` are the frequency
    /// divisors `[dims / 2]`.
    pub fn turns(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let (dims, base, scale) =
            (f64::from(self.dims), f64::from(self.freq_base), f64::from(self.freq_scale));
        let power = |i: usize| match &self.sections {
            Some(sections) if sections.order == SectionOrder::Vision => {
                let at = i as u32 % sections.counts.iter().sum::<u32>().max(1);
                2.0 * f64::from(sections.run(at).1)
            }
            _ => i as f64,
        };
        let plain = |i: usize| base.powf(-2.0 * power(i) / dims) / factors.map_or(1.0, |f| f64::from(f[i]));
        let pairs = self.dims as usize / 2;
        let Some(yarn) = self.yarn else { return (0..pairs).map(|i| plain(i) * scale).collect() };
        // The dimension whose wave makes `beta` turns within the original context.
        let turning = |beta: f32| {
            let waves = f64::from(yarn.original_context) / (f64::from(beta) * 2.0 * PI);
            dims * waves.ln() / (2.0 * base.ln())
        };
        let low = turning(yarn.beta_fast).floor().max(0.0);
        let high = turning(yarn.beta_slow).ceil().min(dims - 1.0);
        let blended = |i: usize| {
            let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let mix = ramp * f64::from(yarn.ext_factor);
            plain(i) * (scale * (1.0 - mix) + mix)
        };
        (0..pairs).map(blended).collect()
    }

    /// Factor on rotated elements.
    pub fn gain(&self) -> f64 {
        let grown = match self.yarn {
            Some(yarn) if yarn.ext_factor != 0.0 => 1.0 - 0.1 * f64::from(self.freq_scale).ln(),
            _ => 1.0,
        };
        f64::from(self.magnitude) * grown
    }

    /// The stream of positions that turns each pair: 0 for all without sections.
    pub fn streams(&self) -> Vec<u32> {
        (0..self.dims / 2).map(|pair| self.sections.map_or(0, |s| s.stream(pair))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(counts: [u32; 4], order: SectionOrder, pairs: u32) -> String {
        let sections = Sections { counts, order };
        (0..pairs).map(|pair| char::from(b"thwe"[sections.stream(pair) as usize])).collect()
    }

    #[test]
    fn streams_are_those_of_the_models() {
        assert_eq!(streams([2, 3, 3, 0], SectionOrder::Runs, 8), "tthhhwww");
        assert_eq!(streams([1, 1, 0, 1], SectionOrder::Runs, 7), "thethet");
        assert_eq!(streams([3, 2, 2, 0], SectionOrder::Interleaved, 7), "thwthwt");
        // Height and width have none left, and what is over belongs to the fourth.
        assert_eq!(streams([4, 2, 1, 3], SectionOrder::Interleaved, 10), "thwtheteet");
        assert_eq!(streams([2, 2, 2, 2], SectionOrder::Vision, 4), "tthh");
    }

    #[test]
    fn frequencies_of_images_begin_anew() {
        let sections = Sections { counts: [2; 4], order: SectionOrder::Vision };
        let rope = Rope {
            heads: 1,
            head_dim: 8,
            dims: 8,
            style: crate::op::RopeStyle::Halves,
            freq_base: 10_000.0,
            freq_scale: 1.0,
            factors: None,
            yarn: None,
            magnitude: 1.0,
            sections: Some(sections),
        };
        let found = rope.turns(None);
        assert!((found[1] - 0.01).abs() < 1e-12, "{found:?}");
        assert_eq!((found[0], found[2], found[3]), (1.0, 1.0, found[1]));
    }
}
