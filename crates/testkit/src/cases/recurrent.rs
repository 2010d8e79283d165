//! Operations that take a state from token to token: several sequences, in steps that end within blocks and at their
//! ends, so that states are read, changed where they are, and written to the next block.

use wootz_graph::op::{Scan, ShortConv};
use wootz_graph::{CacheId, CacheSpec};
use wootz_quant::WeightType;

use super::{Case, Chunks, FLOAT, simple, steps};

const CHUNKS: Chunks =
    &[&[(0, 37), (1, 5)], &[(0, 1), (1, 1)], &[(1, 64), (0, 2)], &[(0, 24)], &[(1, 26), (0, 1)], &[(1, 1)]];

pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (channels, width, first, bias) in
        [(64, 4, 0, true), (75, 4, 9, true), (200, 3, 0, false), (32, 2, 0, true), (48, 9, 16, false)]
    {
        cases.push(conv(channels, width, first, bias));
    }
    // Mamba: a head a channel, and a rate for each state.
    for (heads, state) in [(96, 16), (37, 5)] {
        cases.push(scan(heads, 1, state, 1, true));
    }
    // Mamba-2.
    for (heads, head_dim, state, groups) in [(4, 64, 128, 1), (6, 32, 24, 2), (9, 20, 10, 3)] {
        cases.push(scan(heads, head_dim, state, groups, false));
    }
    cases
}

fn with_state(mut case: Case, elements: usize) -> Case {
    case.caches = vec![CacheSpec::of_state(0, 0, elements as u32)];
    case.steps = steps(CHUNKS);
    // One step returns chosen rows only, and one none.
    case.steps[0].outputs = Some(vec![3, 36, 0]);
    case.steps[2].outputs = Some(Vec::new());
    case
}

fn conv(channels: usize, width: usize, first: usize, bias: bool) -> Case {
    let case = simple(
        format!("short-conv of {width}, {channels} channels from {first} on, bias {bias}"),
        FLOAT,
        1,
        &[channels],
        |w, rng| {
            w.random(rng, "w", WeightType::F32, first + channels + 3, width, 0.5);
            w.random(rng, "b", WeightType::F32, 1, first + channels + 3, 1.0);
        },
        move |b, ins| {
            let (weight, own) = (b.weight("w"), b.weight("b"));
            let bias = bias.then_some(own);
            let conv =
                ShortConv { cache: CacheId(0), weight, first: first as u32, width: width as u32, bias };
            let y = b.short_conv(ins[0], conv, "conv");
            b.gather_outputs(y)
        },
    );
    with_state(case, (width - 1) * channels)
}

fn scan(heads: usize, head_dim: usize, state: usize, groups: usize, rates: bool) -> Case {
    let channels = heads * head_dim;
    let case = simple(
        format!(
            "scan of {heads} heads, {head_dim} wide, {state} states, {groups} groups, {} each",
            if rates { "rates" } else { "a rate" }
        ),
        FLOAT,
        1,
        &[channels, heads, 2 * groups * state],
        |w, rng| {
            let cols = if rates { state } else { 1 };
            let a: Vec<f32> = (0..heads * cols).map(|_| -(-2.5 + 2.5 * rng.signed()).exp()).collect();
            w.add("a", WeightType::F32, cols, &a);
            w.random(rng, "d", WeightType::F32, heads, 1, 1.0);
        },
        move |b, ins| {
            let (a, d) = (b.weight("a"), b.weight("d"));
            let [heads, head_dim, state, groups] = [heads, head_dim, state, groups].map(|n| n as u32);
            // Time steps from next to nothing to large ones.
            let dt = b.scale(ins[1], 4.0);
            let scan = Scan { cache: CacheId(0), heads, head_dim, state, groups, a, d };
            let y = b.scan(ins[0], dt, ins[2], scan);
            b.gather_outputs(y)
        },
    );
    with_state(case, channels * state)
}
