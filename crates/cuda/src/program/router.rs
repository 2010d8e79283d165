//! Launches of the router of experts.

use wootz_graph::op::{Linear, Op};
use wootz_graph::{RunError, Step};

use super::simple::choice_bytes;
use super::{Resolver, Value};
use crate::args::{LinearF32Args, Mut, Ptr, RouterArgs};
use crate::experts::Router;
use crate::machine::{Kernel, Launch};

/// Rows whose experts one kernel chooses; more have kernels of their own for the norm, the scores and the choice.
pub(crate) const MOST_ROWS: u32 = 32;
/// Threads of a block that chooses experts, and experts whose scores it makes.
const THREADS: u32 = 256;
const BLOCK_EXPERTS: u32 = 4;
/// Threads of a block of products in f32, and rows of a warp.
const LINEAR_THREADS: u32 = 256;
const ROWS: u32 = 8;
/// Rows from which on they are many.
const MANY_ROWS: u32 = 64;

impl Resolver<'_> {
    /// The launch that chooses the experts of few rows.
    pub(super) fn router(&self, step: &Step) -> Result<Launch, RunError> {
        let graph = &self.plan.graph;
        let missing = || RunError::Plan("a router without its nodes".into());
        let router = Router::of(graph, &step.nodes).ok_or_else(missing)?;
        let (norm, linear, route) =
            (graph.node(router.norm), graph.node(router.linear), graph.node(router.route));
        let (Op::Norm(attributes), Op::Linear(product), Op::Route(choice)) =
            (&norm.op, &linear.op, &route.op)
        else {
            return Err(missing());
        };
        let scratch = step.scratch.ok_or_else(missing)?;
        let scores = self.arena + scratch.offset as u64;
        let outs = (self.value(route.outs[0])?, self.value(route.outs[1])?);
        let (x, y) = router.input(graph);
        let value = self.value(x)?;
        let y_value = y.map(|y| self.value(y)).transpose()?;
        let tails = y.map(|y| self.tails(y)).unwrap_or_default();
        let sum = router.add.map(|n| graph.node(n).outs[0]);
        let args = RouterArgs {
            route: self.route_args(choice, Ptr::new(scores), product.rows, outs)?,
            x: value.ptr(),
            y: y_value.map_or(Ptr::NULL, |y| y.ptr()),
            y_tail: Ptr::new(tails.first),
            slab: tails.slab,
            x_out: self.kept(step, sum)?,
            norm: self.weights.vector(attributes.weight, 0)?,
            out: self.value(norm.outs[0])?.out(),
            matrix: self.weights.raw(product.weight, 0)?.data.cast(),
            bias: self.weights.vector(product.bias, 0)?,
            scores: Mut::new(scores),
            counters: Mut::new(self.workspace.counters),
            eps: attributes.eps,
            cols: value.cols,
            tails: tails.count,
            unused: 0,
        };
        self.workspace.need(0, value.most as usize);
        let shared = 4 * value.cols as usize + choice_bytes(&args.route);
        let grid = [product.rows.div_ceil(BLOCK_EXPERTS), value.most, 1];
        Ok(Launch::new(Kernel::new("router", "route_rows"), grid, THREADS, &args).shared(shared))
    }

    /// The launch of a product with a matrix of f32.
    pub(super) fn linear_f32(&self, linear: &Linear, x: Value, out: Value) -> Result<Launch, RunError> {
        let args = LinearF32Args {
            rows: self.rows(x.rows),
            x: x.ptr(),
            matrix: self.weights.raw(linear.weight, u64::from(linear.first))?.data.cast(),
            bias: self.weights.vector(linear.bias, linear.first)?,
            out: out.out(),
            cols: x.cols,
            outs: linear.rows,
        };
        // Outputs and rows of a block: with many rows of both some, so that loads are few.
        let (name, outs, rows) = match x.most {
            0..MANY_ROWS => ("linear_f32_few", 1, ROWS),
            _ => ("linear_f32_many", 8, 4 * ROWS),
        };
        let grid = [linear.rows.div_ceil(outs), x.most.div_ceil(rows), 1];
        Ok(Launch::new(Kernel::new("router", name), grid, LINEAR_THREADS, &args))
    }
}
