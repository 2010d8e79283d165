//! Launches of operations that take a recurrent state from token to token.

use wootz_graph::op::{Scan, ShortConv, Wkv, WkvRule};
use wootz_graph::{CacheId, Node, RunError};

use super::launch::{ArgBytes, Call, Launch, Place, Shape};
use super::program::{CacheBuffers, StepBuilder};
use super::step::StepPart;
use crate::args::{ScanArgs, ShiftArgs, ShortConvArgs, WkvArgs};
use crate::library::{Function, Library};

/// Threads of a threadgroup: whole simdgroups.
const THREADS: u32 = 128;

/// States that a thread of the scan has, as far as there are enough.
const STATES_OF_LANE: u32 = 4;

impl StepBuilder<'_, '_> {
    /// Binds the states of a cache and where a step's runs find them.
    fn bind_states(&self, call: Call, cache: CacheId) -> Result<Call, RunError> {
        let CacheBuffers::State(states) = self.cache(cache) else {
            return Err(RunError::Plan(format!("cache {} holds no states", cache.0)));
        };
        Ok(call
            .bind("runs", Place::Step(StepPart::Runs))
            .bind("spans", Place::Step(StepPart::Spans(self.group(cache))))
            .bind("blocks", Place::Step(StepPart::Blocks))
            .bind("states", Place::Fixed(states.clone())))
    }

    pub(super) fn short_conv(&self, conv: &ShortConv, node: &Node) -> Result<Launch, RunError> {
        let args = ShortConvArgs { channels: self.cols(node.ins[0]), width: conv.width, first: conv.first };
        let function =
            Function::new(Library::plain("recurrent"), "short_conv").set("has_bias", conv.bias.is_some());
        let call = self
            .function(function)
            .bind("x", self.place(node.ins[0])?)
            .bind_some("weight", self.vector(Some(conv.weight))?)
            .bind_some("bias", self.vector(conv.bias)?)
            .bind("y", self.place(node.outs[0])?);
        self.finish(self.bind_states(call, conv.cache)?, THREADS, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.channels.div_ceil(THREADS), c.runs, 1],
        })
    }

    pub(super) fn scan(&self, scan: &Scan, node: &Node) -> Result<Launch, RunError> {
        let lanes = (scan.state / STATES_OF_LANE).clamp(1, 32);
        // The largest power of two among them.
        let lanes = 1 << lanes.ilog2();
        let rates = self.compiler.weights.table().info(scan.a).cols as u32;
        let args = ScanArgs { heads: scan.heads, head_dim: scan.head_dim, groups: scan.groups, rates };
        let library = Library::plain("recurrent").with("STATE", scan.state).with("LANES", lanes);
        let call = self
            .call(library, "scan")
            .bind("x", self.place(node.ins[0])?)
            .bind("dt", self.place(node.ins[1])?)
            .bind("bc", self.place(node.ins[2])?)
            .bind_some("a", self.vector(Some(scan.a))?)
            .bind_some("d", self.vector(Some(scan.d))?)
            .bind("y", self.place(node.outs[0])?);
        self.finish(self.bind_states(call, scan.cache)?, THREADS, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [(args.heads * args.head_dim * lanes).div_ceil(THREADS), c.runs, 1],
        })
    }

    pub(super) fn shift(&self, cache: CacheId, node: &Node) -> Result<Launch, RunError> {
        let args = ShiftArgs { channels: self.cols(node.ins[0]) };
        let call = self
            .call(Library::plain("recurrent"), "shift")
            .bind("x", self.place(node.ins[0])?)
            .bind("y", self.place(node.outs[0])?);
        self.finish(self.bind_states(call, cache)?, THREADS, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.channels.div_ceil(THREADS), c.runs, 1],
        })
    }

    pub(super) fn wkv(&self, wkv: &Wkv, node: &Node) -> Result<Launch, RunError> {
        let head_dim = self.cols(node.ins[0]) / wkv.heads;
        let args = WkvArgs { heads: wkv.heads };
        let (seventh, first) = match wkv.rule {
            WkvRule::Six { first } => (false, Some(first)),
            WkvRule::Seven => (true, None),
        };
        let threads = head_dim.next_multiple_of(self.caps().simd_width);
        let library = Library::plain("recurrent").with("HEAD", head_dim).with("WIDE", threads);
        let function = Function::new(library, "wkv");
        let input = |i: usize| self.place(node.ins[i]);
        let call = self
            .function(function.set("is_seventh", seventh))
            .bind("r", input(0)?)
            .bind("k", input(1)?)
            .bind("v", input(2)?)
            .bind("d", input(3)?)
            .bind_some("a", seventh.then(|| input(4)).transpose()?)
            .bind_some("b", seventh.then(|| input(5)).transpose()?)
            .bind_some("factors", self.vector(first)?)
            .bind("y", self.place(node.outs[0])?);
        self.finish(self.bind_states(call, wkv.cache)?, threads, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.heads, c.runs, 1],
        })
    }
}
