//! Sliding windows by example.

use super::{cache, full, window};

#[test]
fn blocks_outside_the_window_are_let_go_and_found_until_needed() {
    let mut cache = cache(2, &[full(20), window(3, 0, 20)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(cache.table(id, 1).unwrap().blocks.len(), 4, "a step needs all of its own tokens");
    cache.commit(id).unwrap();
    // Token 8 sees tokens 6 to 8: only the last block.
    let table = cache.table(id, 1).unwrap();
    assert_eq!((table.first, table.blocks.len()), (3, 1));
    assert_eq!(cache.table(id, 0).unwrap().blocks.len(), 4);
    assert_eq!(cache.stats().groups[1].evictable, 3);
    // A shorter prefix can be used as long as its window is still there.
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 9]).tokens, 4);
    let (other, found) = cache.create("m", &[1, 2, 3, 4, 9]);
    assert_eq!(found.tokens, 4);
    let table = cache.table(other, 1).unwrap();
    assert_eq!((table.first, table.blocks.len()), (1, 1));
}

#[test]
fn a_prefix_whose_window_is_gone_is_not_used() {
    let mut cache = cache(2, &[full(20), window(3, 0, 5)]);
    let (id, _) = cache.create("m", &[]);
    for chunk in [[1, 2], [3, 4], [5, 6], [7, 8]] {
        cache.append(id, &chunk).unwrap();
        cache.commit(id).unwrap();
    }
    // Three blocks are idle and one is free: two taken evict the oldest.
    let (other, _) = cache.create("m", &[]);
    cache.append(other, &[9, 9, 9, 9]).unwrap();
    assert_eq!(cache.stats().groups[1].evictable, 2);
    // The window at 2 tokens needs tokens 0 and 1, which are gone; at 4, tokens 2 and 3, which are not.
    assert_eq!(cache.match_prefix("m", &[1, 2, 0]).tokens, 0);
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 0]).tokens, 4);
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6, 7, 8]).tokens, 8);
    // Part of a block needs the window before it, too.
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 0]).tokens, 0);
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 0]).tokens, 5);
}

#[test]
fn tokens_can_be_taken_back_within_the_slack() {
    for (slack, first) in [(0, 4), (4, 2)] {
        let mut cache = cache(2, &[window(3, slack, 20)]);
        let (id, _) = cache.create("m", &[]);
        cache.append(id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
        cache.commit(id).unwrap();
        assert_eq!(cache.table(id, 0).unwrap().first, first);
        // Beyond the slack the blocks are found again, as long as they were not evicted.
        assert_eq!(cache.truncate(id, 6), Ok(6));
        assert_eq!(cache.truncate(id, 3), Ok(3));
        cache.forget_idle();
        cache.check().unwrap();
    }
}

#[test]
fn taking_back_too_much_leaves_what_is_there() {
    let mut cache = cache(2, &[window(3, 0, 20)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    cache.commit(id).unwrap();
    cache.forget_idle();
    assert_eq!(cache.truncate(id, 7), Ok(0), "the window at 7 tokens starts with token 5, which is gone");
    assert_eq!((cache.tokens(id), cache.committed(id)), (Ok(&[][..]), Ok(0)));
    cache.append(id, &[1, 2]).unwrap();
    cache.check().unwrap();
}
