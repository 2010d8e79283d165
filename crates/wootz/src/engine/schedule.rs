//! Who starts next, and who computes how much in a step.

use std::cmp::Reverse;
use std::collections::HashMap;

use wootz_graph::DeviceKind;

/// The oldest prompt gets at least this part of what a step has left for prompts, however many short ones arrive.
const OLDEST_SHARE: usize = 4;

/// Tokens of prompts in a step of the CPU that so many answers wait for.
///
/// A step takes about as long as it has tokens, and many answers take longer together than few, so prompts may have more
/// beside them. The numbers were found by measuring answers beside prompts (docs/server.md): with fewer, new requests wait
/// and products are slower by the token; with more, answers stutter.
fn prompts_beside_on_cpu(answers: usize) -> usize {
    (8 + 3 * answers).min(16 + 2 * answers).min(128)
}

/// The same on a GPU, whatever waits: some 15 ms of work for a model of 7B on a large one.
fn prompts_beside_on_gpu(_answers: usize) -> usize {
    512
}

/// Tokens that a step may have.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// In all.
    tokens: usize,
    /// Of prompts, where so many answers wait for the step.
    prompts_beside: fn(usize) -> usize,
}

impl Budget {
    /// The budget of a device of this kind for steps of at most `tokens`.
    pub(super) fn new(kind: DeviceKind, tokens: usize) -> Budget {
        let prompts_beside =
            if kind == DeviceKind::Cpu { prompts_beside_on_cpu } else { prompts_beside_on_gpu };
        Budget { tokens, prompts_beside }
    }
}

/// Which of the waiting requests, given by priority and user in the order of arrival, starts next.
///
/// The highest priority goes first; within it the user of whom the fewest requests run; within that the oldest.
pub(super) fn next(
    waiting: impl Iterator<Item = (i32, u64)>,
    running: &HashMap<u64, usize>,
) -> Option<usize> {
    let rank = |(_, (priority, user)): &(usize, (i32, u64))| {
        (Reverse(*priority), running.get(user).copied().unwrap_or(0))
    };
    waiting.enumerate().min_by_key(rank).map(|(i, _)| i)
}

/// Which running request computes how many tokens in the next step, by their uncomputed tokens in the order of start.
///
/// Those that generate have one such token. Of prompts the shortest go first, as that brings most answers soonest.
pub(super) fn grants(pending: &[usize], budget: Budget) -> Vec<(usize, usize)> {
    let mut left = budget.tokens;
    let mut granted = vec![0; pending.len()];
    let mut give = |i: usize, n: usize, left: &mut usize| {
        let n = n.min(*left);
        granted[i] += n;
        *left -= n;
    };
    for i in (0..pending.len()).filter(|i| pending[*i] == 1) {
        give(i, 1, &mut left);
    }
    let answers = budget.tokens - left;
    if answers > 0 {
        left = left.min((budget.prompts_beside)(answers));
    }
    let mut prompts: Vec<usize> = (0..pending.len()).filter(|i| pending[*i] > 1).collect();
    if let Some(&oldest) = prompts.first() {
        let share = pending[oldest].min(left.div_ceil(OLDEST_SHARE));
        give(oldest, share, &mut left);
        prompts.sort_by_key(|i| pending[*i]);
        for i in prompts {
            let had = if i == oldest { share } else { 0 };
            give(i, pending[i] - had, &mut left);
        }
    }
    granted.into_iter().enumerate().filter(|(_, n)| *n > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of so many tokens, whatever they are.
    fn all(tokens: usize) -> Budget {
        Budget::new(DeviceKind::DiscreteGpu, tokens)
    }

    #[test]
    fn generation_goes_first_then_short_prompts_and_the_oldest_never_starves() {
        assert_eq!(grants(&[1, 1, 0], all(8)), [(0, 1), (1, 1)]);
        // 10 left for prompts: 3 for the oldest, 4 for the short one, the rest for the oldest.
        assert_eq!(grants(&[100, 1, 4], all(11)), [(0, 6), (1, 1), (2, 4)]);
        // Short prompts take all but the oldest's share.
        assert_eq!(grants(&[100, 20, 20], all(16)), [(0, 4), (1, 12)]);
        assert_eq!(grants(&[5], all(512)), [(0, 5)]);
        assert_eq!(grants(&[1, 1, 1], all(2)), [(0, 1), (1, 1)]);
        assert_eq!(grants(&[], all(4)), []);
    }

    #[test]
    fn prompts_take_less_of_a_step_that_answers_wait_for() {
        let budget = Budget { tokens: 64, prompts_beside: |answers| 2 * answers };
        assert_eq!(grants(&[100, 0], budget), [(0, 64)]);
        assert_eq!(grants(&[100, 1], budget), [(0, 2), (1, 1)]);
        assert_eq!(grants(&[100, 1, 1], budget), [(0, 4), (1, 1), (2, 1)]);
        assert_eq!(grants(&[100, 1, 1, 2], budget), [(0, 2), (1, 1), (2, 1), (3, 2)]);
        let cpu = |tokens| Budget::new(DeviceKind::Cpu, tokens);
        assert_eq!(grants(&[500, 1], cpu(512)), [(0, 11), (1, 1)]);
        assert_eq!(grants(&[500, 1], cpu(8)), [(0, 7), (1, 1)]);
        assert_eq!([1, 4, 8, 16, 64].map(prompts_beside_on_cpu), [11, 20, 32, 48, 128]);
        let gpu = Budget::new(DeviceKind::DiscreteGpu, 2048);
        assert_eq!(grants(&[2000, 0], gpu), [(0, 2000)]);
        assert_eq!(grants(&[2000, 1], gpu), [(0, 512), (1, 1)]);
        assert_eq!(grants(&[500, 1], cpu(8)), [(0, 7), (1, 1)]);
    }

    #[test]
    fn no_grant_exceeds_what_is_pending_or_the_budget() {
        for seed in 0..500usize {
            let pending: Vec<usize> = (0..seed % 7).map(|i| (seed * 31 + i * 17) % 40).collect();
            let budget = seed % 23;
            let granted = grants(&pending, all(budget));
            let total: usize = granted.iter().map(|(_, n)| n).sum();
            assert_eq!(total, budget.min(pending.iter().sum()), "{pending:?} {budget}");
            assert!(granted.iter().all(|(i, n)| *n > 0 && *n <= pending[*i]), "{pending:?} {granted:?}");
            assert!(granted.is_sorted_by_key(|(i, _)| *i));
        }
    }

    #[test]
    fn users_take_turns_and_priority_goes_first() {
        let running = HashMap::from([(7, 2), (8, 1)]);
        assert_eq!(next([(0, 7), (0, 8), (0, 9), (0, 9)].into_iter(), &running), Some(2));
        assert_eq!(next([(0, 7), (0, 7)].into_iter(), &running), Some(0));
        assert_eq!(next([(0, 9), (1, 7)].into_iter(), &running), Some(1));
        assert_eq!(next([].into_iter(), &running), None);
    }
}
