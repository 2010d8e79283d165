//! Writing keys and values of tokens into a block.

use super::{BLOCK_TOKENS, GROUP, KvType, Layout, Slot};
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

/// Where elements of a head go: to their own rows (keys) or beside each other (values).
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
        let pad = self.layout.v_pad;
        match (ty, block_type(ty)) {
            (KvType::F32, _) => put::<4>(order, out, at, pad, bytemuck::cast_slice(x)),
            (_, Some(ty)) => {
                let (elements, bytes) = (ty.block_elements(), ty.block_bytes());
                debug_assert_eq!(elements, GROUP);
                let codes: &mut [u8] =
                    &mut bytemuck::cast_slice_mut(&mut self.codes)[..x.len() / elements * bytes];
                if ty.encode(x, codes).is_err() {
                    // What the type cannot hold is read back as NaN.
                    codes.fill(0);
                    let nan = half::f16::NAN.to_le_bytes();
                    codes.chunks_exact_mut(bytes).for_each(|block| block[..2].copy_from_slice(&nan));
                }
                put_blocks(order, out, at, bytes, codes);
            }
            (ty, None) => {
                let half = if ty == KvType::F16 { Half::F16 } else { Half::BF16 };
                let codes = &mut self.codes[..x.len()];
                self.isa.dispatch(Narrow { half, x, out: &mut *codes });
                put::<2>(order, out, at, pad, bytemuck::cast_slice(codes));
            }
        }
    }
}

/// Puts elements of `B` bytes to position `at`; rows of values are `pad` elements apart.
fn put<const B: usize>(order: Order, out: &mut [u8], at: usize, pad: usize, elements: &[u8]) {
    match order {
        Order::Values => out[at * pad * B..][..elements.len()].copy_from_slice(elements),
        Order::Keys => {
            let rows = out.chunks_exact_mut(B * BLOCK_TOKENS);
            for (row, element) in rows.zip(elements.as_chunks::<B>().0) {
                row[at * B..][..B].copy_from_slice(element);
            }
        }
    }
}

/// Puts blocks of `bytes`, an f16 scale and codes, to position `at`.
fn put_blocks(order: Order, out: &mut [u8], at: usize, bytes: usize, blocks: &[u8]) {
    let (groups, codes) = (blocks.len() / bytes, bytes - 2);
    let (scales, out) = out.split_at_mut(groups * 2 * BLOCK_TOKENS);
    for (g, block) in blocks.chunks_exact(bytes).enumerate() {
        let (scale, block) = block.split_at(2);
        scales[(g * BLOCK_TOKENS + at) * 2..][..2].copy_from_slice(scale);
        match order {
            Order::Values => out[(at * groups + g) * codes..][..codes].copy_from_slice(block),
            Order::Keys => put::<1>(order, &mut out[g * codes * BLOCK_TOKENS..], at, 0, block),
        }
    }
}
