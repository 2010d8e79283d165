//! Types without a kernel of their own: rows are decoded to f32, then multiplied as F32 weights are.

use super::Rows;
use super::tile::TileArgs;
use crate::act::ActTokens;
use crate::isa::LANES;
use std::ops::Range;

/// Columns decoded at once: a multiple of every block and of the runs of float kernels.
const COLUMNS: usize = 256;
/// Tokens that share one decoding.
const TOKENS: usize = 64;

/// Computes the rows of `groups` for all tokens.
///
/// # Safety
/// As [`Rows::run`].
pub(super) unsafe fn run(job: &Rows<'_>, acts: ActTokens<'_>, groups: Range<usize>) {
    let mut decoded = [0f32; COLUMNS * LANES];
    let mut sums = [0f32; TOKENS * LANES];
    for group in groups {
        let rows = (job.weights.rows() - group * LANES).min(LANES);
        for first in (0..acts.tokens()).step_by(TOKENS) {
            let batch = || acts.tiles(first).take_while(|tile| tile.first < first + TOKENS);
            sums.fill(0.0);
            for column in (0..job.weights.cols()).step_by(COLUMNS) {
                let columns = COLUMNS.min(job.weights.cols() - column);
                decode(job, group, rows, column, columns, &mut decoded);
                for tile in batch() {
                    let sums = &mut sums[(tile.first - first) * LANES..][..tile.tokens * LANES];
                    let args = TileArgs {
                        w: decoded.as_ptr().cast(),
                        codes: std::ptr::null(),
                        a: acts.tile_columns(tile, column).as_ptr(),
                        cols: columns,
                        init: sums.as_ptr(),
                        out: sums.as_mut_ptr(),
                        stride: LANES,
                        rows: LANES,
                    };
                    // SAFETY: the weights are `columns` columns of f32, the tile holds as many; sums are read
                    // before they are written.
                    unsafe { job.kernels.tile(tile.tokens)(&args) };
                }
            }
            for (t, sums) in sums.chunks_exact(LANES).enumerate().take(acts.tokens() - first) {
                // SAFETY: the results have room for all tokens and rows.
                unsafe {
                    let out = job.out.add((first + t) * job.stride + group * LANES);
                    out.copy_from_nonoverlapping(sums.as_ptr(), rows);
                }
            }
        }
    }
}

/// Decodes `columns` columns of a row group, row beside row.
fn decode(job: &Rows<'_>, group: usize, rows: usize, column: usize, columns: usize, out: &mut [f32]) {
    let (ty, row_bytes) = (job.weights.ty(), job.weights.row_bytes());
    let bytes = |columns: usize| columns / ty.block_elements() * ty.block_bytes();
    let mut values = [0f32; COLUMNS];
    for lane in 0..rows {
        let row = &job.weights.group(group)[lane * row_bytes..][bytes(column)..][..bytes(columns)];
        // The sizes fit, so this cannot fail; a value that is not decoded must not pass for one.
        if ty.decode(row, &mut values[..columns]).is_err() {
            values.fill(f32::NAN);
        }
        for (out, value) in out[lane..].iter_mut().step_by(LANES).zip(&values[..columns]) {
            *out = *value;
        }
    }
}
