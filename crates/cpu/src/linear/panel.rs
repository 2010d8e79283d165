//! Products with many tokens: a panel of row groups times a block of tokens, column by column.
//!
//! Columns are taken in runs, so that the block's activations of a run stay in the second-level cache while all row groups
//! of the panel use them, and each tile of them in the first-level cache while a pair of row groups does. Weights are read
//! once for the block; where that is from far away, those of the next pair are asked for meanwhile. Where it pays, the codes of a pair's
//! run are expanded to bytes once for all tiles. Sums wait in a buffer between runs; the order of every sum is that of a
//! tile of all columns.

use super::Rows;
use crate::act::{ActTokens, Tile};
use crate::isa::LANES;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Tokens of a block.
pub(super) const TOKENS: usize = 64;
/// Row groups that use a tile together.
pub(super) const PAIR: usize = 2;
/// Row groups of a panel.
pub(super) const GROUPS: usize = 16;
/// Columns of a run: a multiple of every block and of the runs of the float kernels.
const COLUMNS: usize = 1024;
/// Full tiles from which on expanding pays.
const WORTH_EXPANDING: usize = 3;

/// Memory for one panel.
#[repr(align(64))]
pub(super) struct Scratch {
    /// Expanded codes of each group of a pair.
    codes: [[MaybeUninit<u8>; LANES * COLUMNS]; PAIR],
    /// Sums so far of each group, token by token.
    sums: [[MaybeUninit<f32>; LANES * TOKENS]; GROUPS],
}

impl Scratch {
    /// Memory that is written before it is read, and often not needed: so not even set to zero.
    pub(super) const fn new() -> Scratch {
        Scratch {
            codes: [[MaybeUninit::uninit(); LANES * COLUMNS]; PAIR],
            sums: [[MaybeUninit::uninit(); LANES * TOKENS]; GROUPS],
        }
    }
}

/// Multiplies the row groups of a panel, at most [`GROUPS`], with the tokens from `first` on, at most [`TOKENS`]; `far`
/// says that the weights do not lie in the second-level cache.
///
/// # Safety
/// As [`Rows::run`].
pub(super) unsafe fn run(
    job: &Rows<'_>,
    acts: ActTokens<'_>,
    panel: Range<usize>,
    first: usize,
    far: bool,
    scratch: &mut Scratch,
) {
    let (ty, cols) = (job.weights.ty(), job.weights.cols());
    let tiles = || acts.tiles(first).take_while(|tile| tile.first < first + TOKENS);
    let full = |tile: Tile| tile.tokens == acts.tile_tokens();
    let expanded =
        job.kernels.expanded.filter(|_| tiles().filter(|tile| full(*tile)).count() >= WORTH_EXPANDING);
    let skip_of = |column: usize| column / ty.block_elements() * ty.block_bytes() * LANES;
    let count = tiles().count();
    for column in (0..cols).step_by(COLUMNS) {
        let columns = COLUMNS.min(cols - column);
        let skip = skip_of(column);
        for pair in panel.clone().step_by(PAIR) {
            let groups = PAIR.min(panel.end - pair);
            if let Some((expand, _)) = expanded {
                for (g, codes) in scratch.codes.iter_mut().enumerate().take(groups) {
                    // SAFETY: the group has these columns, and the codes fit.
                    unsafe {
                        expand(
                            job.weights.group(pair + g)[skip..].as_ptr(),
                            columns,
                            codes.as_mut_ptr().cast(),
                        )
                    };
                }
            }
            // What comes after this pair; the first run of the next panel after the last.
            let (next, next_column) = if pair + PAIR < panel.end {
                (pair + PAIR, column)
            } else if column + columns < cols {
                (panel.start, column + columns)
            } else {
                (panel.end, 0)
            };
            let next_bytes = skip_of(next_column)..skip_of(cols.min(next_column + COLUMNS));
            let part = next_bytes.len().div_ceil(count);
            for (t, tile) in tiles().enumerate() {
                let a = acts.tile_columns(tile, column).as_ptr();
                for g in 0..groups {
                    if far && next + g < job.weights.groups() {
                        let next = &job.weights.group(next + g)[next_bytes.clone()];
                        next.chunks(part).nth(t).into_iter().for_each(prefetch);
                    }
                    let sums = scratch.sums[pair - panel.start + g][(tile.first - first) * LANES..]
                        [..tile.tokens * LANES]
                        .as_mut_ptr()
                        .cast::<f32>();
                    let mut args = job.tile(acts, pair + g, tile);
                    args.w = job.weights.group(pair + g)[skip..].as_ptr();
                    (args.a, args.cols) = (a, columns);
                    if column > 0 {
                        args.init = sums;
                    }
                    if column + columns < cols {
                        (args.out, args.stride, args.rows) = (sums, LANES, LANES);
                    }
                    let compute = match expanded {
                        Some((_, compute)) if full(tile) => {
                            args.codes = scratch.codes[g].as_ptr().cast();
                            compute
                        }
                        _ => job.kernels.tile(tile.tokens),
                    };
                    // SAFETY: `args` describes columns of a group of this type and a tile of this size; sums are read
                    // before they are written.
                    unsafe { compute(&args) };
                }
            }
        }
    }
}

/// Asks for memory that is soon read, where the processor lets programs do so.
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every processor of this architecture has the instruction, which changes no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
