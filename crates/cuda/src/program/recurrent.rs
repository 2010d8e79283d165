//! Launches of operations that take a recurrent state from token to token.

use wootz_graph::op::{Scan, ShortConv, Wkv, WkvRule};
use wootz_graph::{CacheId, Node, RunError};

use super::Resolver;
use crate::args::*;
use crate::machine::{Kernel, Launch};
use crate::step::SEQUENCES;

/// Threads of a block.
const THREADS: u32 = 128;
/// States that a thread of the scan has, as far as there are enough.
const STATES_OF_LANE: u32 = 4;
/// Threads of a channel at most: a warp.
const MOST_LANES: u32 = 32;
/// States of a channel that the scan has room for: eight a thread, as in kernels/recurrent.cu.
pub(crate) const MOST_STATES: u32 = 8 * MOST_LANES;

/// Elements of a head of RWKV at most; as in kernels/recurrent.cu.
pub(crate) const MOST_HEAD: u32 = 128;

impl Resolver<'_> {
    /// Where a step's sequences find the states of a cache.
    fn state_tables(&self, cache: CacheId) -> StateTables {
        let group = self.places.groups[self.layout.caches[cache.0 as usize].group as usize];
        StateTables {
            sequences: self.input(SEQUENCES),
            starts: self.input(self.places.starts),
            counts: self.input(self.places.counts),
            positions: self.input(self.places.positions),
            first_blocks: self.input(group.first),
            blocks: self.input(group.blocks),
            max_blocks: self.places.max_blocks as u32,
            unused: 0,
        }
    }

    pub(super) fn short_conv(&self, conv: &ShortConv, node: &Node) -> Result<Launch, RunError> {
        let (x, out) = (self.value(node.ins[0])?, self.value(node.outs[0])?);
        let args = ShortConvArgs {
            tables: self.state_tables(conv.cache),
            x: x.ptr(),
            weight: self.weights.vector(Some(conv.weight), conv.first * conv.width)?,
            bias: self.weights.vector(conv.bias, conv.first)?,
            states: Mut::new(self.cache(conv.cache)?),
            out: out.out(),
            channels: x.cols,
            width: conv.width,
        };
        let grid = [x.cols.div_ceil(THREADS), self.plan.graph.key.seqs, 1];
        Ok(Launch::new(Kernel::new("recurrent", "short_conv"), grid, THREADS, &args))
    }

    pub(super) fn scan(&self, scan: &Scan, node: &Node) -> Result<Launch, RunError> {
        let input = |i: usize| self.value(node.ins[i]);
        // The largest power of two that leaves each thread some states.
        let lanes = 1 << (scan.state / STATES_OF_LANE).clamp(1, MOST_LANES).ilog2();
        let args = ScanArgs {
            tables: self.state_tables(scan.cache),
            x: input(0)?.ptr(),
            dt: input(1)?.ptr(),
            bc: input(2)?.ptr(),
            a: self.weights.vector(Some(scan.a), 0)?,
            d: self.weights.vector(Some(scan.d), 0)?,
            states: Mut::new(self.cache(scan.cache)?),
            out: self.value(node.outs[0])?.out(),
            heads: scan.heads,
            head_dim: scan.head_dim,
            state: scan.state,
            groups: scan.groups,
            rates: self.weights.table().info(scan.a).cols as u32,
            lanes,
        };
        let threads = scan.heads * scan.head_dim * lanes;
        let grid = [threads.div_ceil(THREADS), self.plan.graph.key.seqs, 1];
        Ok(Launch::new(Kernel::new("recurrent", "scan"), grid, THREADS, &args))
    }

    pub(super) fn shift(&self, cache: CacheId, node: &Node) -> Result<Launch, RunError> {
        let (x, out) = (self.value(node.ins[0])?, self.value(node.outs[0])?);
        let args = ShiftArgs {
            tables: self.state_tables(cache),
            x: x.ptr(),
            states: Mut::new(self.cache(cache)?),
            out: out.out(),
            channels: x.cols,
            unused: 0,
        };
        let grid = [x.cols.div_ceil(THREADS), self.plan.graph.key.seqs, 1];
        Ok(Launch::new(Kernel::new("recurrent", "shift"), grid, THREADS, &args))
    }

    pub(super) fn wkv(&self, wkv: &Wkv, node: &Node) -> Result<Launch, RunError> {
        let input = |i: usize| self.value(node.ins[i]).map(|value| value.ptr());
        let out = self.value(node.outs[0])?;
        let head_dim = out.cols / wkv.heads;
        let (a, b, first) = match wkv.rule {
            WkvRule::Six { first } => (Ptr::NULL, Ptr::NULL, self.weights.vector(Some(first), 0)?),
            WkvRule::Seven => (input(4)?, input(5)?, Ptr::NULL),
        };
        let args = WkvArgs {
            tables: self.state_tables(wkv.cache),
            r: input(0)?,
            k: input(1)?,
            v: input(2)?,
            d: input(3)?,
            a,
            b,
            first,
            states: Mut::new(self.cache(wkv.cache)?),
            out: out.out(),
            heads: wkv.heads,
            head_dim,
        };
        let grid = [wkv.heads, self.plan.graph.key.seqs, 1];
        Ok(Launch::new(Kernel::new("recurrent", "wkv"), grid, head_dim.next_multiple_of(32), &args))
    }
}
