//! Sharing, copying, eviction and refusal by example.

use super::super::{BlockCopy, ConfigError, GroupStats, KvCache, KvConfig, KvError, PrefixMatch};
use super::{Weak, cache, full, window};

fn blocks(cache: &KvCache, id: super::super::SeqId) -> Vec<u32> {
    cache.table(id, 0).unwrap().blocks.to_vec()
}

/// A sequence of these tokens, computed and committed.
fn run(cache: &mut KvCache, tokens: &[u32]) -> super::super::SeqId {
    let (id, found) = cache.create("m", tokens);
    cache.append(id, &tokens[found.tokens..]).unwrap();
    cache.commit(id).unwrap();
    id
}

#[test]
fn two_requests_share_whole_blocks_at_once() {
    let mut cache = cache(2, &[full(10)]);
    let first = run(&mut cache, &[1, 2, 3, 4, 5]);
    let (second, found) = cache.create("m", &[1, 2, 3, 4, 9]);
    assert_eq!(found, PrefixMatch { tokens: 4, shared_blocks: 2, copied_tokens: 0 });
    assert_eq!(blocks(&cache, second), blocks(&cache, first)[..2]);
    assert_eq!(cache.stats().groups[0], GroupStats { total: 10, free: 7, evictable: 0, used: 3, shared: 2 });
    // Another namespace shares nothing.
    assert_eq!(cache.match_prefix("other", &[1, 2, 3, 4]), PrefixMatch::default());
    // What is not committed is not found.
    cache.append(first, &[6]).unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6]).tokens, 4);
    cache.commit(first).unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6]).tokens, 6);
    assert!(cache.take_copies().is_empty());
}

#[test]
fn a_partly_filled_block_is_reused_by_copy() {
    let mut cache = cache(4, &[full(10)]);
    let first = run(&mut cache, &[1, 2, 3, 4, 5, 6]);
    let old = blocks(&cache, first);
    cache.free(first).unwrap();
    let (next, found) = cache.create("m", &[1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(found, PrefixMatch { tokens: 6, shared_blocks: 1, copied_tokens: 2 });
    let new = blocks(&cache, next);
    assert_eq!(new[0], old[0]);
    assert_eq!(cache.take_copies(), [BlockCopy { group: 0, src: old[1], dst: new[1] }]);
    // Part of a whole block, too.
    assert_eq!(cache.match_prefix("m", &[1, 2, 9]).tokens, 2);
    // The same end again is not kept twice.
    cache.free(next).unwrap();
    assert_eq!(cache.stats().groups[0].evictable, 2);
}

#[test]
fn forks_copy_on_write() {
    let mut cache = cache(2, &[full(10)]);
    let first = run(&mut cache, &[1, 2, 3]);
    let second = cache.fork(first).unwrap();
    let shared = blocks(&cache, first);
    assert_eq!(blocks(&cache, second), shared);
    cache.append(second, &[7]).unwrap();
    let own = blocks(&cache, second);
    assert_eq!(own[0], shared[0]);
    assert_ne!(own[1], shared[1]);
    assert_eq!(cache.take_copies(), [BlockCopy { group: 0, src: shared[1], dst: own[1] }]);
    // The last holder writes in place.
    cache.append(first, &[8]).unwrap();
    assert_eq!(blocks(&cache, first), shared);
    assert!(cache.take_copies().is_empty());
    assert_eq!(cache.fork(first), Err(KvError::Uncommitted { pending: 1 }));
}

#[test]
fn twins_that_compute_the_same_end_up_sharing() {
    let mut cache = cache(2, &[full(10)]);
    let (first, _) = cache.create("m", &[1, 2]);
    let (second, _) = cache.create("m", &[1, 2]);
    for id in [first, second] {
        cache.append(id, &[1, 2]).unwrap();
    }
    assert_ne!(blocks(&cache, first), blocks(&cache, second));
    cache.commit(first).unwrap();
    cache.commit(second).unwrap();
    assert_eq!(blocks(&cache, first), blocks(&cache, second));
    assert_eq!(cache.stats().groups[0].used, 1);
}

#[test]
fn a_published_block_is_not_written_after_a_cut() {
    let mut cache = cache(4, &[full(3)]);
    let id = run(&mut cache, &[1, 2, 3, 4]);
    let old = blocks(&cache, id)[0];
    assert_eq!(cache.truncate(id, 2), Ok(2));
    assert_eq!(cache.truncate(id, 9), Ok(2), "a longer length changes nothing");
    cache.append(id, &[9]).unwrap();
    let new = blocks(&cache, id)[0];
    assert_eq!(cache.take_copies(), [BlockCopy { group: 0, src: old, dst: new }]);
    // The first answer is still there for another attempt.
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4]).tokens, 4);
}

#[test]
fn with_no_block_to_copy_into_a_published_one_is_taken_back() {
    let mut cache = cache(4, &[full(1)]);
    let id = run(&mut cache, &[1, 2, 3, 4]);
    let old = blocks(&cache, id);
    cache.truncate(id, 3).unwrap();
    cache.append(id, &[9]).unwrap();
    assert_eq!(blocks(&cache, id), old);
    assert!(cache.take_copies().is_empty());
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4]).tokens, 0);
    cache.check().unwrap();
    // The end of an ended sequence can be taken over the same way.
    cache.commit(id).unwrap();
    cache.truncate(id, 2).unwrap();
    cache.free(id).unwrap();
    let (next, found) = cache.create("m", &[1, 2, 3]);
    assert_eq!((found.tokens, blocks(&cache, next)), (3, old));
    cache.check().unwrap();
}

#[test]
fn the_least_recently_used_goes_first_and_ends_go_before_beginnings() {
    let mut cache = cache(1, &[full(6)]);
    for text in [[1, 2], [3, 4], [5, 6]] {
        let id = run(&mut cache, &text);
        cache.free(id).unwrap();
    }
    let known = |cache: &KvCache| [[1, 2], [3, 4], [5, 6]].map(|text| cache.match_prefix("m", &text).tokens);
    assert_eq!(known(&cache), [2, 2, 2]);
    // Using a text makes it the most recent.
    let id = run(&mut cache, &[1, 2]);
    cache.free(id).unwrap();
    let mut take = |n: u32| {
        let (id, _) = cache.create("m", &[]);
        cache.append(id, &vec![9; n as usize]).unwrap();
        let left = known(&cache);
        // Not committed, so it leaves nothing behind and gives its blocks back as free ones.
        cache.free(id).unwrap();
        left
    };
    assert_eq!(take(1), [2, 1, 2]);
    assert_eq!(take(2), [2, 0, 2]);
    assert_eq!(take(3), [2, 0, 1]);
    assert_eq!(take(5), [1, 0, 0]);
    assert_eq!(take(6), [0, 0, 0]);
    assert_eq!(cache.stats().evicted_blocks, 6);
}

#[test]
fn held_blocks_are_never_evicted() {
    let mut cache = cache(2, &[full(4)]);
    let first = run(&mut cache, &[1, 2, 3, 4]);
    let second = run(&mut cache, &[1, 2, 3, 4, 5]);
    let error = cache.append(second, &[6, 7, 8, 9]).unwrap_err();
    assert_eq!(error, KvError::OutOfBlocks { group: 0, needed: 2, free: 1, evictable: 0, total: 4 });
    let text = "group 0 of the KV cache is full: 2 blocks needed, 1 free and 0 evictable of 4";
    assert_eq!(error.to_string(), text);
    cache.append(second, &[6, 7, 8]).unwrap();
    cache.commit(second).unwrap();
    // First and second share two blocks; ending the first frees none of them.
    cache.free(first).unwrap();
    assert!(cache.append(second, &[9]).is_err());
    assert_eq!(cache.tokens(second), Ok(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
}

#[test]
fn a_group_that_is_full_refuses_for_all() {
    let mut cache = cache(1, &[full(9), window(2, 0, 3)]);
    let (id, _) = cache.create("m", &[]);
    let error = cache.append(id, &[1, 2, 3, 4]).unwrap_err();
    assert_eq!(error, KvError::OutOfBlocks { group: 1, needed: 4, free: 3, evictable: 0, total: 3 });
    assert_eq!(cache.stats().groups[0].used, 0);
    // In chunks it fits, since the window moves on.
    for chunk in [[1, 2], [3, 4], [5, 6]] {
        cache.append(id, &chunk).unwrap();
        cache.commit(id).unwrap();
    }
    assert_eq!(cache.stats().groups[1].used, 1);
}

#[test]
fn a_match_survives_the_eviction_that_its_own_copy_needs() {
    let mut cache = cache(2, &[full(4)]);
    let first = run(&mut cache, &[1, 2, 3]);
    cache.free(first).unwrap();
    let other = run(&mut cache, &[7, 8, 9, 10]);
    // No block is free; the copy of the end must not evict the beginning or the end itself.
    let (id, found) = cache.create("m", &[1, 2, 3, 4]);
    assert_eq!(found.tokens, 3);
    assert_eq!(cache.take_copies(), []);
    cache.check().unwrap();
    cache.append(id, &[4]).unwrap();
    cache.free(other).unwrap();
    cache.check().unwrap();
}

#[test]
fn unknown_sequences_are_refused() {
    let mut cache = cache(2, &[full(4)]);
    let id = run(&mut cache, &[1]);
    cache.free(id).unwrap();
    let gone = KvError::UnknownSequence(id);
    assert_eq!(cache.append(id, &[1]), Err(gone.clone()));
    assert_eq!(cache.commit(id), Err(gone.clone()));
    assert_eq!(cache.fork(id), Err(gone.clone()));
    assert_eq!(cache.truncate(id, 0), Err(gone.clone()));
    assert_eq!(cache.free(id), Err(gone.clone()));
    assert_eq!(cache.retract(id, 0), Err(gone.clone()));
    assert_eq!(cache.drop_blocks(id, 0, 0), Err(gone.clone()));
    assert_eq!(cache.table(id, 0), Err(gone.clone()));
    assert_eq!(cache.tokens(id), Err(gone));
}

#[test]
fn configurations_that_make_no_cache_are_refused() {
    let refused =
        |block_tokens, groups: &[_]| KvCache::new(KvConfig { block_tokens, groups: groups.to_vec() }).err();
    assert_eq!(refused(0, &[full(1)]), Some(ConfigError::BlockTokens));
    assert_eq!(refused(4, &[]), Some(ConfigError::NoGroup));
    assert_eq!(refused(4, &[full(1), window(0, 1, 4)]), Some(ConfigError::Window { group: 1 }));
    assert_eq!(KvConfig::full(7).block_tokens, 32);
}

#[test]
fn a_cache_without_blocks_refuses_politely() {
    let mut cache = cache(2, &[full(0)]);
    let (id, _) = cache.create("m", &[1, 2]);
    cache.append(id, &[]).unwrap();
    let error = KvError::OutOfBlocks { group: 0, needed: 1, free: 0, evictable: 0, total: 0 };
    assert_eq!(cache.append(id, &[1]), Err(error));
    cache.free(id).unwrap();
    cache.check().unwrap();
}

#[test]
fn texts_of_one_hash_are_told_apart() {
    let config = KvConfig { block_tokens: 2, groups: vec![full(20)] };
    let mut cache = KvCache::with_hasher(config, Weak).unwrap();
    for text in [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4]] {
        let (id, found) = cache.create("m", &text);
        cache.append(id, &text[found.tokens..]).unwrap();
        cache.commit(id).unwrap();
        cache.free(id).unwrap();
    }
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4]).tokens, 4);
    assert_eq!(cache.match_prefix("m", &[2, 1, 4, 3]).tokens, 2);
    assert_eq!(cache.match_prefix("m", &[3, 4]).tokens, 0);
    assert_eq!(cache.match_prefix("n", &[1, 2, 3, 4]).tokens, 0);
}
