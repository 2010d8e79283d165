//! Writing keys and values of tokens into a block.

use super::{BLOCK_TOKENS, KvType, LANES, Layout, Slot};
use crate::math::Narrow;
use crate::{Half, Isa};
use wootz_quant::WeightType;

/// The weight type with the blocks of a quantised cache type.
fn block_type(ty: KvType) -> Option<WeightType> {
    match ty {
        KvType::F32 | KvType::F16 | KvType::BF16 => None,
        KvType::Q8_0 => Some(WeightType::Q8_0),
        KvType::Q4_0 => Some(WeightType::Q4_0),
    }
}

/// One head's keys or values of a step, and memory for its elements in their type.
pub(super) struct Writer<'a> {
    isa: Isa,
    layout: &'a Layout,
    codes: Vec<u16>,
}

/// How elements of a head lie: keys with positions in lanes, values with elements in lanes.
#[derive(Clone, Copy)]
enum Order {
    Keys,
    Values,
}

impl<'a> Writer<'a> {
    pub(super) fn new(isa: Isa, layout: &'a Layout) -> Writer<'a> {
        let bytes = |ty: KvType, dim: usize| match ty {
            KvType::F32 => 0,
            _ => ty.bytes(dim),
        };
        let most = bytes(layout.k_type, layout.k_dim).max(bytes(layout.v_type, layout.v_dim));
        Writer { isa, layout, codes: vec![0; most / 2] }
    }

    /// Writes head `head` of some tokens, the first of them `first`, to their slots in `place`, the head's memory
    /// in one block; `k` and `v` are those of all tokens.
    pub(super) fn head(
        &mut self,
        place: &mut [u8],
        slots: &[Slot],
        first: usize,
        head: usize,
        k: &[f32],
        v: &[f32],
    ) {
        let Layout { heads, k_dim, v_dim, k_type, v_type, .. } = *self.layout;
        let (keys, values) = place.split_at_mut(self.layout.k_bytes);
        for (token, slot) in slots.iter().enumerate() {
            let row = (first + token) * heads + head;
            let at = slot.offset as usize;
            self.write(k_type, Order::Keys, keys, at, &k[row * k_dim..][..k_dim]);
            self.write(v_type, Order::Values, values, at, &v[row * v_dim..][..v_dim]);
        }
    }

    fn write(&mut self, ty: KvType, order: Order, out: &mut [u8], at: usize, x: &[f32]) {
        match (ty, block_type(ty)) {
            (KvType::F32, _) => order.put::<4>(out, at, x.len(), 0, bytemuck::cast_slice(x)),
            (_, Some(ty)) => {
                let (groups, bytes) = (x.len() / ty.block_elements(), ty.block_bytes());
                let blocks: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut self.codes)[..groups * bytes];
                if ty.encode(x, blocks).is_err() {
                    // What the type cannot hold is read back as NaN.
                    blocks.fill(0);
                    let nan = half::f16::NAN.to_le_bytes();
                    blocks.chunks_exact_mut(bytes).for_each(|block| block[..2].copy_from_slice(&nan));
                }
                let (scales, out) = out.split_at_mut(groups * 2 * BLOCK_TOKENS);
                for (g, block) in blocks.chunks_exact(bytes).enumerate() {
                    let (scale, codes) = block.split_at(2);
                    scales[(g * BLOCK_TOKENS + at) * 2..][..2].copy_from_slice(scale);
                    order.put::<1>(out, at, groups * codes.len(), g * codes.len(), codes);
                }
            }
            (ty, None) => {
                let half = if ty == KvType::F16 { Half::F16 } else { Half::BF16 };
                let codes = &mut self.codes[..x.len()];
                self.isa.dispatch(Narrow { half, x, out: &mut *codes });
                order.put::<2>(out, at, x.len(), 0, bytemuck::cast_slice(codes));
            }
        }
    }
}

impl Order {
    /// Puts elements of `B` bytes, of `len` the ones from `first` on, to position `at`.
    fn put<const B: usize>(self, out: &mut [u8], at: usize, len: usize, first: usize, elements: &[u8]) {
        match self {
            Order::Keys => {
                let (half, lane) = (at / LANES, at % LANES);
                let vectors = out[(half * len + first) * LANES * B..].chunks_exact_mut(LANES * B);
                for (vector, element) in vectors.zip(elements.as_chunks::<B>().0) {
                    vector[lane * B..][..B].copy_from_slice(element);
                }
            }
            Order::Values => {
                for (c, vector) in (first / LANES..).zip(elements.chunks(LANES * B)) {
                    out[(c * BLOCK_TOKENS + at) * LANES * B..][..vector.len()].copy_from_slice(vector);
                }
            }
        }
    }
}
