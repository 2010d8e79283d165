//! The tokens so far, and the penalties on seeing them again.

use std::collections::BTreeMap;

use super::params::SamplingParams;
use super::work::Work;

/// Number of last tokens that somebody looks at; none is all of them.
pub(super) type Window = Option<usize>;

/// Reads a window as the parameters spell it: -1 is all tokens.
pub(super) fn window(last_n: i32) -> Window {
    usize::try_from(last_n).ok()
}

/// The last tokens of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct History {
    /// Oldest first; may hold more than anybody looks at.
    tokens: Vec<u32>,
    /// How many tokens must be kept.
    keep: Window,
    /// How many tokens `counts` speaks about.
    counted: Window,
    /// Times that each token stands among the last `counted` ones.
    counts: BTreeMap<u32, u32>,
}

impl History {
    /// Looks at no more tokens than the parameters need.
    pub(super) fn new(params: &SamplingParams) -> Self {
        let counted = if penalties_are_on(params) { window(params.repeat_last_n) } else { Some(0) };
        let dry = if super::dry::is_on(params) { window(params.dry_penalty_last_n) } else { Some(0) };
        let keep = counted.zip(dry).map(|(a, b)| a.max(b));
        Self { tokens: Vec::new(), keep, counted, counts: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, token: u32) {
        if self.keep == Some(0) {
            return;
        }
        self.tokens.push(token);
        if self.counted != Some(0) {
            *self.counts.entry(token).or_default() += 1;
        }
        if let Some(counted) = self.counted
            && counted > 0
            && self.tokens.len() > counted
        {
            let leaving = self.tokens[self.tokens.len() - 1 - counted];
            if let Some(count) = self.counts.get_mut(&leaving) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&leaving);
                }
            }
        }
        // Cut rarely, so that a push stays cheap.
        if let Some(keep) = self.keep
            && self.tokens.len() > 2 * keep + 64
        {
            self.tokens.drain(..self.tokens.len() - keep);
        }
    }

    /// The last tokens, oldest first, at most as many as the window holds.
    pub(super) fn last(&self, window: Window) -> &[u32] {
        let tokens = self.tokens.as_slice();
        window.map_or(tokens, |n| &tokens[tokens.len().saturating_sub(n)..])
    }

    /// Tokens among the last ones that penalties look at, rising, with the times that each was seen.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.counts.iter().map(|(&token, &count)| (token, count))
    }

    /// The tokens that must be kept, oldest first.
    pub(super) fn kept(&self) -> &[u32] {
        self.last(self.keep)
    }
}

/// Tells whether the repeat, frequency or presence penalty changes anything.
pub(super) fn penalties_are_on(params: &SamplingParams) -> bool {
    params.repeat_last_n != 0
        && (params.repeat_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0)
}

/// Lowers the logits of tokens that were seen.
///
/// Division raises a negative logit, so those are multiplied by the repeat penalty instead.
pub(super) fn penalize(work: &mut Work<'_>, params: &SamplingParams, history: &History) {
    if !penalties_are_on(params) {
        return;
    }
    let seen: Vec<(u32, u32)> = history.counts().collect();
    work.edit(&seen, |logit, count| {
        let repeated =
            if logit <= 0.0 { logit * params.repeat_penalty } else { logit / params.repeat_penalty };
        let lowered = repeated - (count as f32 * params.frequency_penalty + params.presence_penalty);
        bounded(lowered)
    });
}

/// The nearest finite number: only a ban may remove a token.
pub(super) fn bounded(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_window_through_cuts() {
        for (repeat, dry) in [(3, 0), (3, 10), (0, 5), (-1, 4), (7, -1), (1, 0)] {
            let params = SamplingParams {
                repeat_last_n: repeat,
                repeat_penalty: 1.5,
                dry_multiplier: 1.0,
                dry_penalty_last_n: dry,
                ..SamplingParams::default()
            };
            let mut history = History::new(&params);
            let mut all = Vec::new();
            for i in 0..500u32 {
                let token = i.wrapping_mul(i) % 7;
                history.push(token);
                all.push(token);
                let naive = |window: i32| {
                    let n = if window < 0 { all.len() } else { (window as usize).min(all.len()) };
                    all[all.len() - n..].to_vec()
                };
                let mut counts = BTreeMap::new();
                for token in naive(repeat) {
                    *counts.entry(token).or_insert(0u32) += 1;
                }
                assert_eq!(history.counts, counts, "windows {repeat}, {dry} after {i}");
                assert_eq!(history.last(window(dry)), naive(dry), "windows {repeat}, {dry} after {i}");
            }
        }
    }
}
