//! Recurrent states by example.

use wootz_graph::NO_BLOCK;

use super::super::BlockCopy;
use super::{cache, full, state};

#[test]
fn a_sequence_starts_where_a_block_or_another_has_ended() {
    let mut cache = cache(2, &[full(20), state(6)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3, 4]).unwrap();
    // Of what is appended at once, not every end of a block is a checkpoint.
    let blocks = cache.table(id, 1).unwrap().blocks;
    assert!(matches!(blocks, [NO_BLOCK, kept] if *kept != NO_BLOCK), "{blocks:?}");
    cache.commit(id).unwrap();
    cache.append(id, &[5, 6, 7]).unwrap();
    cache.commit(id).unwrap();
    // The next token needs the last state alone; those before are kept for others while there is room.
    let table = cache.table(id, 1).unwrap();
    assert_eq!((table.first, table.blocks.len()), (3, 1));
    let last = table.blocks[0];
    assert_eq!(cache.stats().groups[1].evictable, 2);

    // Five tokens are in the attention's cache, but the state is known after four only.
    let (next, found) = cache.create("m", &[1, 2, 3, 4, 5]);
    assert_eq!((found.tokens, found.copied_tokens), (4, 0));
    assert_eq!(cache.table(next, 1).unwrap().first, 1);
    assert!(cache.take_copies().is_empty());
    assert_eq!(cache.match_prefix("m", &[1, 9]).tokens, 0);
    cache.free(next).unwrap();

    // Where a sequence has ended, within a block, another with all its tokens starts from a copy of its state.
    cache.free(id).unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6]).tokens, 6);
    let (next, found) = cache.create("m", &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((found.tokens, found.copied_tokens), (7, 1));
    let own = cache.table(next, 1).unwrap().blocks[0];
    assert!(cache.take_copies().contains(&BlockCopy { group: 1, src: last, dst: own }));
    cache.check().unwrap();
}

#[test]
fn a_state_goes_back_to_where_a_block_ends() {
    let mut cache = cache(4, &[full(20), state(4)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3, 4, 5, 6]).unwrap();
    cache.commit(id).unwrap();
    assert_eq!(cache.truncate(id, 5), Ok(4));
    assert_eq!(cache.table(id, 1).unwrap().first, 0);
    // What was appended and not computed has changed nothing.
    cache.append(id, &[5, 6]).unwrap();
    cache.commit(id).unwrap();
    cache.append(id, &[7, 8, 9]).unwrap();
    cache.retract(id, 6).unwrap();
    assert_eq!((cache.tokens(id).unwrap().len(), cache.committed(id)), (6, Ok(6)));
    assert_eq!(cache.truncate(id, 3), Ok(0));
    assert!(cache.table(id, 1).unwrap().blocks.is_empty());
    cache.check().unwrap();
}

#[test]
fn twins_share_a_state_until_one_goes_on() {
    let mut cache = cache(4, &[state(3)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3]).unwrap();
    cache.commit(id).unwrap();
    let twin = cache.fork(id).unwrap();
    let shared = cache.table(id, 0).unwrap().blocks[0];
    assert_eq!(cache.table(twin, 0).unwrap().blocks, [shared]);
    cache.append(twin, &[4]).unwrap();
    let own = cache.table(twin, 0).unwrap().blocks[0];
    assert_eq!(cache.take_copies(), [BlockCopy { group: 0, src: shared, dst: own }]);
    cache.append(id, &[5]).unwrap();
    assert!(cache.take_copies().is_empty());
    cache.check().unwrap();
}

#[test]
fn what_a_file_does_not_hold_is_not_found() {
    let mut cache = cache(2, &[full(20), state(6)]);
    let (id, _) = cache.create("m", &[]);
    cache.append(id, &[1, 2, 3, 4, 5]).unwrap();
    cache.drop_blocks(id, 1, 2).unwrap();
    cache.commit(id).unwrap();
    cache.check().unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4]).tokens, 0);
    cache.free(id).unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5]).tokens, 5);
}
