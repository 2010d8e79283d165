//! A group of elements, their weights, and sums over them.

/// Eight numbers, so that loops over them become vector instructions; the order of sums is fixed.
#[derive(Clone, Copy)]
pub(super) struct Lanes(pub(super) [f32; 8]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; 8]);

    #[inline(always)]
    pub(super) fn map(self, f: impl Fn(f32) -> f32) -> Lanes {
        let mut out = Lanes::ZERO;
        for (o, v) in out.0.iter_mut().zip(self.0) {
            *o = f(v);
        }
        out
    }

    #[inline(always)]
    fn with(self, other: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
        let mut out = Lanes::ZERO;
        for ((o, a), b) in out.0.iter_mut().zip(self.0).zip(other.0) {
            *o = f(a, b);
        }
        out
    }

    fn sum(self) -> f32 {
        self.0.iter().sum()
    }
}

impl std::ops::Add for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn add(self, other: Lanes) -> Lanes {
        self.with(other, |a, b| a + b)
    }
}

impl std::ops::Mul for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn mul(self, other: Lanes) -> Lanes {
        self.with(other, |a, b| a * b)
    }
}

/// `8 * C` elements that share a scale.
pub(super) struct Group<const C: usize> {
    pub(super) x: [Lanes; C],
    pub(super) w: [Lanes; C],
    /// The sum of the weights.
    pub(super) sw: f32,
    /// The weighted sum of the elements.
    pub(super) swx: f32,
}

/// Weighted sums over a group with levels `q`.
pub(super) struct Moments {
    pub(super) q: f32,
    pub(super) qq: f32,
    pub(super) qx: f32,
}

impl<const C: usize> Group<C> {
    pub(super) fn new(x: &[f32]) -> Self {
        let mut lanes = [Lanes::ZERO; C];
        for (lanes, x) in lanes.iter_mut().zip(x.as_chunks().0) {
            *lanes = Lanes(*x);
        }
        let x = lanes;
        let squares = x.iter().fold(Lanes::ZERO, |sum, &x| sum + x * x).sum();
        let rms = (squares / (8 * C) as f32).sqrt();
        let w = x.map(|x| x.map(|v| rms + v.abs()));
        let sw = w.iter().fold(Lanes::ZERO, |sum, &w| sum + w).sum();
        let swx = x.iter().zip(&w).fold(Lanes::ZERO, |sum, (&x, &w)| sum + w * x).sum();
        Group { x, w, sw, swx }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = f32> {
        self.x.iter().flat_map(|x| x.0)
    }

    /// Sums with the levels that `level` gives to the elements.
    #[inline(always)]
    pub(super) fn moments(&self, level: impl Fn(f32) -> f32) -> Moments {
        self.moments_of(self.x.iter().map(|x| x.map(&level)))
    }

    /// Sums with given levels.
    #[inline(always)]
    pub(super) fn moments_of(&self, levels: impl Iterator<Item = Lanes>) -> Moments {
        let [mut sq, mut sqq, mut sqx] = [Lanes::ZERO; 3];
        for ((&x, &w), q) in self.x.iter().zip(&self.w).zip(levels) {
            let wq = w * q;
            sq = sq + wq;
            sqq = sqq + wq * q;
            sqx = sqx + wq * x;
        }
        Moments { q: sq.sum(), qq: sqq.sum(), qx: sqx.sum() }
    }

    /// The weighted squares of `value(x) - x`.
    #[inline(always)]
    pub(super) fn error(&self, value: impl Fn(f32) -> f32) -> f32 {
        let mut sum = Lanes::ZERO;
        for (&x, &w) in self.x.iter().zip(&self.w) {
            let e = x.map(|v| value(v) - v);
            sum = sum + w * e * e;
        }
        sum.sum()
    }
}
