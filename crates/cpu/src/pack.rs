//! Weights in the kernels' order.
//!
//! Rows are taken in groups of 16, one 32-bit lane of a virtual vector for each row; the last group is padded with
//! zero rows. A group holds its blocks one after the other, and a block holds its fields, each for 16 rows side by
//! side, in the order in which the kernels read them: scales first, then the code vectors, each with four
//! consecutive elements of all 16 rows. A block takes 16 times the bytes of a GGUF block, so packing costs no
//! memory. Plain floats are groups with blocks of one element; of BF16 two columns make a word. Types without a fast kernel keep their GGUF bytes.

mod kquants;
mod legacy;
mod plain;

use crate::CpuError;
use crate::act::ActForm;
use crate::isa::LANES;
use crate::memory::Buffer;
use std::ops::Range;
use wootz_quant::WeightType;

/// One row's place in a packed block.
struct LaneMut<'a> {
    block: &'a mut [u8],
    lane: usize,
}

impl LaneMut<'_> {
    fn put8(&mut self, field: usize, value: u8) {
        self.block[field + self.lane] = value;
    }

    fn put16(&mut self, field: usize, value: [u8; 2]) {
        let at = field + 2 * self.lane;
        self.block[at..at + 2].copy_from_slice(&value);
    }

    fn put32(&mut self, field: usize, value: u32) {
        let at = field + 4 * self.lane;
        self.block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// One row's place in a packed block, to read.
struct Lane<'a> {
    block: &'a [u8],
    lane: usize,
}

impl Lane<'_> {
    fn get8(&self, field: usize) -> u8 {
        self.block[field + self.lane]
    }

    fn get16(&self, field: usize) -> [u8; 2] {
        let at = field + 2 * self.lane;
        [self.block[at], self.block[at + 1]]
    }

    fn get32(&self, field: usize) -> u32 {
        word(self.block, field + 4 * self.lane)
    }
}

/// The little-endian word at byte `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    let (words, _) = bytes[at..].as_chunks::<4>();
    u32::from_le_bytes(words[0])
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// How rows get into a group.
#[derive(Clone, Copy)]
enum Pack {
    /// Writes one GGUF block into a lane.
    Blocks(fn(&[u8], &mut LaneMut<'_>)),
    /// Writes the rows of a group, each of so many bytes.
    Rows(fn(&[u8], usize, &mut [u8])),
}
/// The inverse.
#[derive(Clone, Copy)]
enum Unpack {
    /// Reads one GGUF block from a lane.
    Blocks(fn(&Lane<'_>, &mut [u8])),
    /// Reads the row of a lane of a group.
    Row(fn(&[u8], usize, &mut [u8])),
}

/// How a weight type lies in a row group.
struct Layout {
    pack: Pack,
    unpack: Unpack,
}

/// The layout of a type; `None` for types that keep their GGUF bytes.
fn layout(ty: WeightType) -> Option<Layout> {
    use WeightType::*;
    let blocks = |pack: fn(&[u8], &mut LaneMut<'_>), unpack: fn(&Lane<'_>, &mut [u8])| Layout {
        pack: Pack::Blocks(pack),
        unpack: Unpack::Blocks(unpack),
    };
    Some(match ty {
        F32 => Layout { pack: Pack::Rows(plain::pack::<4>), unpack: Unpack::Blocks(plain::unpack_4) },
        F16 => Layout { pack: Pack::Rows(plain::pack::<2>), unpack: Unpack::Blocks(plain::unpack_2) },
        BF16 => Layout { pack: Pack::Rows(plain::pack_bf16), unpack: Unpack::Row(plain::unpack_bf16) },
        Q8_0 => blocks(legacy::pack_q8_0, legacy::unpack_q8_0),
        Q4_0 | IQ4_NL => blocks(legacy::pack_nibbles::<2>, legacy::unpack_nibbles::<2>),
        Q4_1 => blocks(legacy::pack_nibbles::<4>, legacy::unpack_nibbles::<4>),
        Q5_0 => blocks(legacy::pack_five::<2>, legacy::unpack_five::<2>),
        Q5_1 => blocks(legacy::pack_five::<4>, legacy::unpack_five::<4>),
        MXFP4 => blocks(legacy::pack_nibbles::<1>, legacy::unpack_nibbles::<1>),
        Q2_K => blocks(kquants::pack_q2, kquants::unpack_q2),
        Q3_K => blocks(kquants::pack_q3, kquants::unpack_q3),
        Q4_K => blocks(kquants::pack_q4, kquants::unpack_q4),
        Q5_K => blocks(kquants::pack_q5, kquants::unpack_q5),
        Q6_K => blocks(kquants::pack_q6, kquants::unpack_q6),
        IQ4_XS => blocks(kquants::pack_iq4_xs, kquants::unpack_iq4_xs),
        _ => return None,
    })
}

/// A weight matrix `[rows, cols]` in the kernels' order.
#[derive(Debug)]
pub struct PackedMatrix {
    ty: WeightType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    buffer: Buffer,
}

impl PackedMatrix {
    /// A matrix of zero bytes, to be filled through [`groups_mut`](PackedMatrix::groups_mut).
    ///
    /// # Errors
    /// The shape does not suit the type, or the memory is refused.
    pub fn zeroed(ty: WeightType, rows: usize, cols: usize) -> Result<PackedMatrix, CpuError> {
        PackedMatrix::zeroed_in(Buffer::zeroed, ty, rows, cols)
    }

    /// The same in memory that `allocate` gives, zeroed.
    ///
    /// # Errors
    /// As [`zeroed`](PackedMatrix::zeroed).
    pub fn zeroed_in(
        allocate: impl FnOnce(usize) -> Result<Buffer, CpuError>,
        ty: WeightType,
        rows: usize,
        cols: usize,
    ) -> Result<PackedMatrix, CpuError> {
        let shape = CpuError::MatrixShape { ty, rows, cols };
        let (Some(row_bytes), Some(padded)) = (ty.row_bytes(cols), rows.checked_next_multiple_of(LANES))
        else {
            return Err(shape);
        };
        let bytes = row_bytes.checked_mul(padded).ok_or(shape)?;
        Ok(PackedMatrix { ty, rows, cols, row_bytes, buffer: allocate(bytes)? })
    }

    /// Packs all rows of `src`, the GGUF bytes of the matrix.
    ///
    /// # Errors
    /// As [`zeroed`](PackedMatrix::zeroed), and where `src` has another length.
    pub fn pack(ty: WeightType, rows: usize, cols: usize, src: &[u8]) -> Result<PackedMatrix, CpuError> {
        let mut matrix = PackedMatrix::zeroed(ty, rows, cols)?;
        let groups = matrix.groups();
        if rows == 0 {
            return expect("bytes of a matrix", 0, src.len()).map(|()| matrix);
        }
        for mut part in matrix.groups_mut(groups) {
            part.pack(src)?;
        }
        Ok(matrix)
    }

    /// Weight type.
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Groups of 16 rows, the last one padded.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// The form of activations that this matrix multiplies with.
    pub fn form(&self) -> ActForm {
        ActForm::of(self.ty)
    }

    /// Whether the type has a packed order, and so a fast kernel; otherwise the rows are GGUF bytes.
    pub(crate) fn is_packed(&self) -> bool {
        layout(self.ty).is_some()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes of a row in GGUF.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of a group of 16 rows.
    pub(crate) fn group_bytes(&self) -> usize {
        self.row_bytes * LANES
    }

    /// The packed bytes of one group; for types without a fast kernel the GGUF bytes of its 16 rows.
    pub(crate) fn group(&self, group: usize) -> &[u8] {
        &self.buffer[group * self.group_bytes()..(group + 1) * self.group_bytes()]
    }

    /// Disjoint runs of `groups` row groups each, in order, for a loader that fills them in any order, in parallel.
    pub fn groups_mut(&mut self, groups: usize) -> impl Iterator<Item = RowGroupsMut<'_>> {
        let groups = groups.max(1);
        let (ty, rows, row_bytes) = (self.ty, self.rows, self.row_bytes);
        // A matrix without columns has no bytes to hand out.
        let chunk = (groups * LANES * row_bytes).max(1);
        self.buffer.chunks_mut(chunk).enumerate().map(move |(i, bytes)| {
            let first = i * groups * LANES;
            RowGroupsMut { ty, rows: first..rows.min(first + groups * LANES), row_bytes, bytes }
        })
    }

    /// Writes the GGUF bytes of row `row` to `out`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where `row` or the length of `out` is out of range.
    pub fn unpack_row(&self, row: usize, out: &mut [u8]) -> Result<(), CpuError> {
        expect("bytes of a row", self.row_bytes, out.len())?;
        if row >= self.rows {
            return Err(CpuError::Length {
                what: "rows up to the one asked for",
                expected: self.rows,
                found: row,
            });
        }
        let (group, lane) = (self.group(row / LANES), row % LANES);
        let Some(layout) = layout(self.ty) else {
            out.copy_from_slice(&group[lane * self.row_bytes..(lane + 1) * self.row_bytes]);
            return Ok(());
        };
        let size = self.ty.block_bytes();
        match layout.unpack {
            Unpack::Blocks(unpack) => {
                for (block, out) in group.chunks_exact(size * LANES).zip(out.chunks_exact_mut(size)) {
                    unpack(&Lane { block, lane }, out);
                }
            }
            Unpack::Row(unpack) => unpack(group, lane, out),
        }
        Ok(())
    }
}

fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), CpuError> {
    if expected == found { Ok(()) } else { Err(CpuError::Length { what, expected, found }) }
}

/// A run of row groups of a [`PackedMatrix`], to be filled.
#[derive(Debug)]
pub struct RowGroupsMut<'a> {
    ty: WeightType,
    rows: Range<usize>,
    row_bytes: usize,
    bytes: &'a mut [u8],
}

impl RowGroupsMut<'_> {
    /// The rows of the matrix that this run holds.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Bytes of these rows in GGUF: the length that [`pack`](RowGroupsMut::pack) wants.
    pub fn source_bytes(&self) -> usize {
        self.rows.len() * self.row_bytes
    }

    /// Packs these rows from their GGUF bytes.
    ///
    /// # Errors
    /// [`CpuError::Length`] where `src` is not [`source_bytes`](RowGroupsMut::source_bytes) long.
    pub fn pack(&mut self, src: &[u8]) -> Result<(), CpuError> {
        expect("bytes of rows to pack", self.source_bytes(), src.len())?;
        let Some(layout) = layout(self.ty) else {
            self.bytes[..src.len()].copy_from_slice(src);
            return Ok(());
        };
        let size = self.ty.block_bytes();
        for (group, rows) in
            self.bytes.chunks_exact_mut(self.row_bytes * LANES).zip(src.chunks(self.row_bytes * LANES))
        {
            let pack = match layout.pack {
                Pack::Blocks(pack) => pack,
                Pack::Rows(pack) => {
                    pack(rows, self.row_bytes, group);
                    continue;
                }
            };
            for (b, block) in group.chunks_exact_mut(size * LANES).enumerate() {
                for (lane, row) in rows.chunks_exact(self.row_bytes).enumerate() {
                    pack(&row[b * size..(b + 1) * size], &mut LaneMut { block, lane });
                }
            }
        }
        Ok(())
    }
}
