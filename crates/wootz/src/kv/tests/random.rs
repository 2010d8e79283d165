//! Thousands of random operations, each checked against the memory and the invariants.

use std::hash::{BuildHasher, RandomState};

use super::super::{Group, GroupKind, KvConfig, KvError};
use super::machine::Machine;
use super::{Weak, full, state, window};
use crate::sample::Rng;

fn below(rng: &mut Rng, n: usize) -> usize {
    (rng.next_u64() % n.max(1) as u64) as usize
}

/// Few different tokens, so that texts often share a prefix.
fn text(rng: &mut Rng, most: usize) -> Vec<u32> {
    let length = below(rng, most + 1);
    let letters = 1 + below(rng, 3);
    (0..length).map(|_| below(rng, letters) as u32).collect()
}

#[derive(Default)]
struct Seen {
    reused: usize,
    refused: usize,
    evicted: u64,
    copied: u64,
}

fn play(config: KvConfig, hasher: impl BuildHasher + Clone, seed: u64, steps: usize, seen: &mut Seen) {
    let mut rng = Rng::new(seed, 0);
    let mut machine = Machine::new(config.clone(), hasher);
    for _ in 0..steps {
        let count = machine.running.len();
        let at = below(&mut rng, count);
        match below(&mut rng, 12) {
            0 | 1 if count < 6 => {
                let tokens = text(&mut rng, 5 * config.block_tokens);
                let namespace = ["a", "b"][below(&mut rng, 6) / 5];
                let reused = machine.create(namespace, &tokens);
                seen.reused += reused;
                // The rest of the prompt, in one or two chunks.
                let rest = &tokens[reused..];
                let at = machine.running.len() - 1;
                let (first, second) = rest.split_at(below(&mut rng, rest.len() + 1));
                for chunk in [first, second] {
                    if machine.compute(at, chunk).is_err() {
                        seen.refused += 1;
                        break;
                    }
                    machine.commit(at);
                }
            }
            2..=5 if count > 0 => {
                let tokens = text(&mut rng, 2 * config.block_tokens);
                match machine.compute(at, &tokens) {
                    // Sometimes computed but not yet committed.
                    Ok(()) if below(&mut rng, 4) > 0 => machine.commit(at),
                    Ok(()) => {}
                    Err(KvError::OutOfBlocks { needed, free, evictable, .. }) => {
                        assert!(needed > free + evictable);
                        seen.refused += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            6 if count > 0 && count < 6 => match machine.fork(at) {
                Ok(()) | Err(KvError::Uncommitted { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            7 | 8 if count > 0 => {
                let length = machine.running[at].tokens.len();
                let back = below(&mut rng, length.min(3 * config.block_tokens) + 1);
                machine.truncate(at, length - back);
            }
            9 if count > 0 => machine.commit(at),
            10 if count > 0 => {
                let tokens = text(&mut rng, 2 * config.block_tokens);
                machine.retract(at, &tokens);
            }
            11 if count > 0 => machine.free(at),
            _ => {}
        }
    }
    while !machine.running.is_empty() {
        machine.free(0);
    }
    let stats = machine.cache.stats();
    assert_eq!(stats.sequences, 0);
    assert!(stats.groups.iter().all(|group| group.used == 0), "leaked: {stats:?}");
    seen.evicted += stats.evicted_blocks;
    seen.copied += stats.copied_blocks;
    machine.cache.forget_idle();
    machine.cache.check().unwrap();
    let stats = machine.cache.stats();
    assert_eq!(stats.prefixes, 0, "prefixes without blocks: {stats:?}");
    assert!(stats.groups.iter().all(|group| group.free == group.total), "leaked: {stats:?}");
}

fn play_all(groups: &[&[Group]], hasher: impl BuildHasher + Clone) {
    let mut seen = Seen::default();
    for (set, groups) in groups.iter().enumerate() {
        for round in 0..25 {
            let block_tokens = [1, 2, 3, 4, 7][round % 5];
            let config = KvConfig { block_tokens, groups: groups.to_vec() };
            play(config, hasher.clone(), (set * 100 + round) as u64, 400, &mut seen);
        }
    }
    // A test that never comes to these says nothing about them.
    assert!(seen.reused > 1000 && seen.refused > 100 && seen.evicted > 500 && seen.copied > 500);
}

#[test]
fn attention_holds_what_it_must() {
    play_all(&[&[full(9)], &[full(24)], &[full(60)], &[full(9), full(14)]], RandomState::new());
}

#[test]
fn windows_hold_what_they_must() {
    let sets: [&[Group]; 6] = [
        &[window(5, 0, 12)],
        &[window(1, 0, 12)],
        &[window(6, 3, 40)],
        &[full(30), window(4, 0, 14)],
        &[full(30), window(9, 2, 30)],
        &[full(14), window(3, 0, 14), window(8, 0, 20)],
    ];
    play_all(&sets, RandomState::new());
}

#[test]
fn states_are_those_of_their_text() {
    let sets: [&[Group]; 5] = [
        &[state(4)],
        &[state(20)],
        &[full(30), state(8)],
        &[full(14), state(12), state(9)],
        &[full(30), window(4, 2, 20), state(10)],
    ];
    play_all(&sets, RandomState::new());
}

#[test]
fn colliding_hashes_change_nothing() {
    play_all(&[&[full(24)], &[full(30), window(4, 0, 14)], &[full(30), state(8)]], Weak);
}

#[test]
fn runs_are_repeatable_whatever_the_hasher() {
    // The blocks chosen must not depend on the order of a hash map.
    let tables = |hasher: Box<dyn Fn() -> RandomState>| {
        let config = KvConfig { block_tokens: 2, groups: vec![full(20), window(3, 0, 16)] };
        let mut machine = Machine::new(config, hasher());
        let mut rng = Rng::new(77, 0);
        let mut log = Vec::new();
        for _ in 0..300 {
            let tokens = text(&mut rng, 9);
            let reused = machine.create("m", &tokens);
            let at = machine.running.len() - 1;
            if machine.compute(at, &tokens[reused..]).is_ok() {
                machine.commit(at);
            }
            if machine.running.len() > 3 {
                let at = below(&mut rng, 4);
                machine.free(at);
            }
            for running in &machine.running {
                for group in 0..2 {
                    log.push(machine.cache.table(running.id, group).unwrap().blocks.to_vec());
                }
            }
        }
        log
    };
    assert_eq!(tables(Box::new(RandomState::new)), tables(Box::new(RandomState::new)));
}

/// Without evictions and forks all that was computed can be found again, as long as it can be.
#[test]
fn reuse_is_as_long_as_it_can_be() {
    for round in 0..30 {
        let block_tokens = [1, 2, 4, 5][round % 4];
        let mut rng = Rng::new(round as u64, 5);
        let config = KvConfig { block_tokens, groups: vec![full(4000)] };
        let mut machine = Machine::new(config, RandomState::new());
        // What is to be found: whole blocks of running sequences, all of ended ones.
        let mut known: Vec<(String, Vec<u32>)> = Vec::new();
        for _ in 0..60 {
            let tokens = text(&mut rng, 6 * block_tokens);
            let namespace = ["a", "b"][below(&mut rng, 2)];
            let shared = |other: &[u32]| other.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            let of_name = known.iter().filter(|(name, _)| name == namespace);
            let wanted = of_name.map(|(_, text)| shared(text)).max().unwrap_or(0);
            let reused = machine.create(namespace, &tokens);
            assert_eq!(reused, wanted, "{tokens:?} in {namespace} with {known:?}");
            let at = machine.running.len() - 1;
            machine.compute(at, &tokens[reused..]).unwrap();
            machine.commit(at);
            let whole = tokens.len() / block_tokens * block_tokens;
            known.push((namespace.to_string(), tokens[..whole].to_vec()));
            if below(&mut rng, 3) == 0 {
                let at = below(&mut rng, machine.running.len());
                let ended = &machine.running[at];
                known.push((ended.namespace.clone(), ended.tokens.clone()));
                machine.free(at);
            }
        }
    }
}

#[test]
fn group_kinds_say_what_they_need() {
    let kind = GroupKind::Window { tokens: 5, slack: 3 };
    // Token 20 sees tokens 16 to 20; with three taken back, token 17 sees 13 to 17.
    assert_eq!((kind.first_needed(20, 4), kind.first_kept(20, 4)), (4, 3));
    assert_eq!((kind.first_needed(2, 4), GroupKind::Full.first_needed(99, 4)), (0, 0));
    // The state before token 8 is that after token 7, in block 1.
    assert_eq!([0, 1, 8, 9].map(|length| GroupKind::State.first_needed(length, 4)), [0, 0, 1, 2]);
}
