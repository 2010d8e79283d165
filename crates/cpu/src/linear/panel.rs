//! Products with many tokens: a panel of row groups times a block of tokens, column by column.
//!
//! Columns are taken in runs, and each tile of activations is used for all row groups of the panel while it lies in
//! the first-level cache. Where it pays, the codes of the panel's run are expanded to bytes once for all tiles.
//! Sums wait in a buffer between runs; the order of every sum is that of a tile of all columns.

use super::Rows;
use crate::act::{ActTokens, Tile};
use crate::isa::LANES;

/// Tokens of a block.
pub(super) const TOKENS: usize = 64;
/// Row groups of a panel.
pub(super) const GROUPS: usize = 2;
/// Columns of a run: a multiple of every block and of the runs of the float kernels.
const COLUMNS: usize = 1024;
/// Full tiles from which on expanding pays.
const WORTH_EXPANDING: usize = 3;

/// Memory for one panel.
#[repr(align(64))]
pub(super) struct Scratch {
    /// Expanded codes of each group.
    codes: [[u8; LANES * COLUMNS]; GROUPS],
    /// Sums so far of each group, token by token.
    sums: [[f32; LANES * TOKENS]; GROUPS],
}

impl Scratch {
    pub(super) const fn new() -> Scratch {
        Scratch { codes: [[0; LANES * COLUMNS]; GROUPS], sums: [[0.0; LANES * TOKENS]; GROUPS] }
    }
}

/// Multiplies the row groups from `group` on, at most [`GROUPS`], with the tokens from `first` on, at most [`TOKENS`].
///
/// # Safety
/// As [`Rows::run`].
pub(super) unsafe fn run(
    job: &Rows<'_>,
    acts: ActTokens<'_>,
    group: usize,
    groups: usize,
    first: usize,
    scratch: &mut Scratch,
) {
    let (ty, cols) = (job.weights.ty(), job.weights.cols());
    let tiles = || acts.tiles(first).take_while(|tile| tile.first < first + TOKENS);
    let full = |tile: Tile| tile.tokens == acts.tile_tokens();
    let expanded =
        job.kernels.expanded.filter(|_| tiles().filter(|tile| full(*tile)).count() >= WORTH_EXPANDING);
    for column in (0..cols).step_by(COLUMNS) {
        let columns = COLUMNS.min(cols - column);
        let skip = column / ty.block_elements() * ty.block_bytes() * LANES;
        if let Some((expand, _)) = expanded {
            for (g, codes) in scratch.codes.iter_mut().enumerate().take(groups) {
                // SAFETY: the group has these columns, and the codes fit.
                unsafe { expand(job.weights.group(group + g)[skip..].as_ptr(), columns, codes.as_mut_ptr()) };
            }
        }
        for tile in tiles() {
            let a = acts.tile_columns(tile, column).as_ptr();
            for g in 0..groups {
                let sums =
                    scratch.sums[g][(tile.first - first) * LANES..][..tile.tokens * LANES].as_mut_ptr();
                let mut args = job.tile(acts, group + g, tile);
                args.w = job.weights.group(group + g)[skip..].as_ptr();
                (args.a, args.cols) = (a, columns);
                if column > 0 {
                    args.init = sums;
                }
                if column + columns < cols {
                    (args.out, args.stride, args.rows) = (sums, LANES, LANES);
                }
                let compute = match expanded {
                    Some((_, compute)) if full(tile) => {
                        args.codes = scratch.codes[g].as_ptr();
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
