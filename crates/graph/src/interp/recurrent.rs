//! Operations that take a state from token to token.

use std::ops::Range;

use crate::op::{Scan, ShortConv};

/// A convolution with its weights.
pub(super) struct Conv<'a> {
    pub(super) conv: &'a ShortConv,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<Vec<f32>>,
    pub(super) channels: usize,
}

impl Conv<'_> {
    /// Computes some tokens; the state is `[width - 1, channels]`, the oldest row first.
    pub(super) fn run(&self, x: &[f32], tokens: Range<usize>, state: &mut [f32], y: &mut [f32]) {
        let (n, width, first) = (self.channels, self.conv.width as usize, self.conv.first as usize);
        for t in tokens {
            let row = &x[t * n..(t + 1) * n];
            for c in 0..n {
                let weight = &self.weight[(first + c) * width..(first + c + 1) * width];
                let seen = (0..width - 1).map(|j| state[j * n + c]).chain([row[c]]);
                let sum: f64 = seen.zip(weight).map(|(x, w)| f64::from(x) * f64::from(*w)).sum();
                let bias = self.bias.as_ref().map_or(0.0, |b| f64::from(b[first + c]));
                y[t * n + c] = (sum + bias) as f32;
            }
            state.copy_within(n.., 0);
            let last = state.len() - n;
            state[last..].copy_from_slice(row);
        }
    }
}

/// A selective scan with its weights.
pub(super) struct Scanned<'a> {
    pub(super) scan: &'a Scan,
    pub(super) a: &'a [f32],
    pub(super) d: &'a [f32],
}

impl Scanned<'_> {
    /// Computes some tokens; the state is `[heads, head_dim, state]`.
    pub(super) fn run(
        &self,
        x: &[f32],
        dt: &[f32],
        bc: &[f32],
        tokens: Range<usize>,
        state: &mut [f32],
        y: &mut [f32],
    ) {
        let Scan { heads, head_dim, state: n, groups, .. } = *self.scan;
        let [heads, head_dim, n, groups] = [heads, head_dim, n, groups].map(|v| v as usize);
        let rates = self.a.len() / heads;
        for t in tokens {
            let (b, c) = bc[t * 2 * groups * n..(t + 1) * 2 * groups * n].split_at(groups * n);
            for h in 0..heads {
                let group = h / (heads / groups) * n;
                let dt = f64::from(dt[t * heads + h]);
                // ln(1 + exp(dt)), which exp does not overflow.
                let delta = dt.max(0.0) + (-dt.abs()).exp().ln_1p();
                for p in h * head_dim..(h + 1) * head_dim {
                    let input = f64::from(x[t * heads * head_dim + p]);
                    let mut sum = f64::from(self.d[h]) * input;
                    for i in 0..n {
                        let rate = f64::from(self.a[h * rates + if rates == 1 { 0 } else { i }]);
                        let s = &mut state[p * n + i];
                        let next =
                            (delta * rate).exp() * f64::from(*s) + delta * f64::from(b[group + i]) * input;
                        *s = next as f32;
                        sum += next * f64::from(c[group + i]);
                    }
                    y[t * heads * head_dim + p] = sum as f32;
                }
            }
        }
    }
}

/// Gives the rows of the tokens before; the state is the last row.
pub(super) fn shift(x: &[f32], cols: usize, tokens: Range<usize>, state: &mut [f32], y: &mut [f32]) {
    for t in tokens {
        let row = t * cols..(t + 1) * cols;
        y[row.clone()].copy_from_slice(state);
        state.copy_from_slice(&x[row]);
    }
}

/// A recurrence of RWKV with its inputs: by the sixth rule where it has factors of the first time, else by the seventh.
pub(super) struct WkvOf<'a> {
    pub(super) cols: usize,
    pub(super) heads: usize,
    pub(super) first: Option<Vec<f32>>,
    /// r, k, v, d, and by the seventh rule a and b.
    pub(super) ins: Vec<&'a [f32]>,
}

impl WkvOf<'_> {
    /// Computes some tokens; the state is `[heads, head_dim, head_dim]`.
    pub(super) fn run(&self, tokens: Range<usize>, state: &mut [f32], y: &mut [f32]) {
        let n = self.cols / self.heads;
        for t in tokens {
            for h in 0..self.heads {
                let at = |input: usize, i: usize| f64::from(self.ins[input][t * self.cols + h * n + i]);
                let [r, k, v, d] =
                    [0, 1, 2, 3].map(|input| (0..n).map(|i| at(input, i)).collect::<Vec<f64>>());
                for j in 0..n {
                    let place = |i: usize| (h * n + i) * n + j;
                    let old: Vec<f64> = (0..n).map(|i| f64::from(state[place(i)])).collect();
                    let removed: f64 = match self.first {
                        Some(_) => 0.0,
                        None => (0..n).map(|i| at(4, i) * old[i]).sum(),
                    };
                    let mut sum = 0.0;
                    for i in 0..n {
                        let next = match &self.first {
                            Some(first) => {
                                sum += r[i] * (old[i] + f64::from(first[h * n + i]) * k[i] * v[j]);
                                (-d[i].exp()).exp() * old[i] + k[i] * v[j]
                            }
                            None => {
                                let decay = (-(-0.5f64).exp() / (1.0 + (-d[i]).exp())).exp();
                                let next = decay * old[i] + k[i] * v[j] + at(5, i) * removed;
                                sum += r[i] * next;
                                next
                            }
                        };
                        state[place(i)] = next as f32;
                    }
                    y[t * self.cols + h * n + j] = sum as f32;
                }
            }
        }
    }
}
