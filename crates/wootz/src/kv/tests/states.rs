//! Recurrent states and their checkpoints by example.

use super::super::{BlockOp, KvError};
use super::{cache, full, state};

#[test]
fn a_state_starts_clear_and_continues_from_the_best_checkpoint() {
    let mut cache = cache(2, &[full(20), state(4)]);
    let (id, _) = cache.create("m", &[]).unwrap();
    let slot = cache.table(id, 1).unwrap().blocks[0];
    assert_eq!(cache.take_ops(), [BlockOp::Clear { group: 1, block: slot }]);
    cache.append(id, &[1, 2, 3, 4]).unwrap();
    cache.commit(id).unwrap();
    cache.checkpoint(id).unwrap();
    let copies = cache.take_ops();
    let [BlockOp::Copy { group: 1, src, dst: kept }] = copies[..] else { panic!("{copies:?}") };
    assert_eq!(src, slot);
    cache.checkpoint(id).unwrap();
    assert!(cache.take_ops().is_empty(), "one checkpoint of a prefix is enough");
    cache.append(id, &[5, 6, 7]).unwrap();
    cache.commit(id).unwrap();

    // Six tokens are in the attention's cache, but the state is known after four only.
    let (next, found) = cache.create("m", &[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(found.tokens, 4);
    let own = cache.table(next, 1).unwrap().blocks[0];
    assert_eq!(cache.take_ops(), [BlockOp::Copy { group: 1, src: kept, dst: own }]);
    assert_eq!(cache.match_prefix("m", &[1, 2, 3]).tokens, 0);

    // The end of a sequence is a checkpoint by itself.
    cache.free(id).unwrap();
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6, 7, 8]).tokens, 7);
    assert_eq!(cache.match_prefix("m", &[1, 2, 3, 4, 5, 6]).tokens, 4);
    cache.check().unwrap();
}

#[test]
fn checkpoints_are_made_where_a_block_ends() {
    let mut cache = cache(2, &[full(20), state(2)]);
    let (id, _) = cache.create("m", &[]).unwrap();
    assert_eq!(cache.checkpoint(id), Err(KvError::Unaligned { length: 0, block_tokens: 2 }));
    cache.append(id, &[1, 2, 3]).unwrap();
    assert_eq!(cache.checkpoint(id), Err(KvError::Uncommitted { pending: 3 }));
    cache.commit(id).unwrap();
    assert_eq!(cache.checkpoint(id), Err(KvError::Unaligned { length: 3, block_tokens: 2 }));
    let twin = cache.fork(id).unwrap();
    let full = KvError::OutOfBlocks { group: 1, needed: 1, free: 0, evictable: 0, total: 2 };
    assert_eq!(cache.fork(id), Err(full.clone()));
    assert_eq!(cache.create("m", &[]), Err(full.clone()));
    cache.append(id, &[4]).unwrap();
    cache.commit(id).unwrap();
    assert_eq!(cache.checkpoint(id), Err(full));
    cache.free(twin).unwrap();
    cache.checkpoint(id).unwrap();
    cache.check().unwrap();
}

#[test]
fn a_state_goes_back_to_a_checkpoint_or_to_the_start() {
    let mut cache = cache(2, &[full(20), state(3)]);
    let (id, _) = cache.create("m", &[]).unwrap();
    cache.append(id, &[1, 2]).unwrap();
    cache.commit(id).unwrap();
    cache.checkpoint(id).unwrap();
    cache.append(id, &[3, 4, 5]).unwrap();
    cache.commit(id).unwrap();
    let slot = cache.table(id, 1).unwrap().blocks[0];
    let _ = cache.take_ops();
    assert_eq!(cache.truncate(id, 4), Ok(2));
    assert!(matches!(cache.take_ops()[..], [BlockOp::Copy { group: 1, dst, .. }] if dst == slot));
    assert_eq!(cache.truncate(id, 1), Ok(0));
    assert_eq!(cache.take_ops(), [BlockOp::Clear { group: 1, block: slot }]);
    cache.check().unwrap();
}

#[test]
fn with_one_slot_the_checkpoint_itself_is_taken_over() {
    let mut cache = cache(2, &[state(1)]);
    let (id, _) = cache.create("m", &[]).unwrap();
    cache.append(id, &[1, 2, 3]).unwrap();
    cache.commit(id).unwrap();
    cache.free(id).unwrap();
    let _ = cache.take_ops();
    let (next, found) = cache.create("m", &[1, 2, 3, 4]).unwrap();
    assert_eq!((found.tokens, cache.table(next, 0).unwrap().blocks), (3, &[0][..]));
    assert!(cache.take_ops().is_empty());
    cache.check().unwrap();
}
