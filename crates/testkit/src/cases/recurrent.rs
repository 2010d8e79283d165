//! Operations that take a state from token to token: several sequences, in steps that end within blocks and at their
//! ends, so that states are read, changed where they are, and written to the next block.

use wootz_graph::op::{Bonus, Lerp, Scan, ShortConv, Wkv, WkvRule};
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
    // RWKV.
    for cols in [64, 75] {
        cases.push(shift(cols));
    }
    for (heads, head_dim) in [(3, 64), (2, 32), (4, 20)] {
        cases.push(wkv(heads, head_dim, true));
        cases.push(wkv(heads, head_dim, false));
        cases.push(bonus(heads, head_dim));
    }
    for (value, row) in [(true, true), (true, false), (false, true)] {
        cases.push(lerp(value, row));
    }
    cases
}

fn shift(cols: usize) -> Case {
    let case = simple(
        format!("shift of {cols} columns"),
        0.0,
        1,
        &[cols],
        |_, _| (),
        |b, ins| {
            let y = b.shift(ins[0], CacheId(0), "shift");
            b.gather_outputs(y)
        },
    );
    with_state(case, cols)
}

fn wkv(heads: usize, head_dim: usize, sixth: bool) -> Case {
    let cols = heads * head_dim;
    let case = simple(
        format!("wkv {} of {heads} heads, {head_dim} wide", if sixth { "6" } else { "7" }),
        FLOAT,
        1,
        &[cols; 6],
        |w, rng| w.random(rng, "first", WeightType::F32, heads, head_dim, 0.5),
        move |b, ins| {
            let first = b.weight("first");
            let rule = if sixth { WkvRule::Six { first } } else { WkvRule::Seven };
            let wkv = Wkv { cache: CacheId(0), heads: heads as u32, rule };
            // What is taken from the state and what comes in its place is small, or the state would grow for ever.
            let small = 1.0 / (head_dim as f32).sqrt();
            let mut list = ins.to_vec();
            list[4] = b.scale(list[4], small);
            list[5] = b.scale(list[5], small);
            let y = b.wkv(&list[..if sixth { 4 } else { 6 }], wkv);
            b.gather_outputs(y)
        },
    );
    with_state(case, cols * head_dim)
}

fn bonus(heads: usize, head_dim: usize) -> Case {
    let cols = heads * head_dim;
    simple(
        format!("bonus of {heads} heads, {head_dim} wide"),
        FLOAT,
        7,
        &[cols; 3],
        |w, rng| w.random(rng, "w", WeightType::F32, heads, head_dim, 1.0),
        move |b, ins| {
            let weight = b.weight("w");
            b.bonus(ins[0], ins[1], ins[2], Bonus { heads: heads as u32, weight })
        },
    )
}

fn lerp(value: bool, row: bool) -> Case {
    simple(
        format!("lerp by a value {value}, by a row {row}"),
        FLOAT,
        7,
        &[75; 3],
        |w, rng| w.random(rng, "w", WeightType::F32, 3, 75, 1.0),
        move |b, ins| {
            let table = b.weight("w");
            let lerp = Lerp { row: row.then_some((table, 1)) };
            b.lerp(ins[0], ins[1], value.then_some(ins[2]), lerp, "lerp")
        },
    )
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
