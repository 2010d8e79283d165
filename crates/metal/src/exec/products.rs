//! Launches of matrix products.

use wootz_graph::op::{Activation, Linear, Norm, Op};
use wootz_graph::{NodeId, Region, RunError, ValueId, WeightId};
use wootz_quant::WeightType;

use super::launch::{ArgBytes, Launch, Place, Shape};
use super::program::{StepBuilder, activation};
use crate::args::{ExpertArgs, MatmulArgs, MatvecArgs, SortArgs};
use crate::device::Slice;
use crate::library::{Function, Library};
use crate::select;

/// Rows that a simdgroup takes, and simdgroups of a threadgroup; as in matvec.metal.
const ROWS: u32 = 4;
const SIMDGROUPS: u32 = 2;
/// Tiles of matmul.metal.
const TILE_TOKENS: u32 = 32;
const TILE_OUTPUTS: u32 = 64;
const TILE_THREADS: u32 = 128;

/// The nodes of a step around its products.
#[derive(Default)]
struct Parts {
    norm: Option<(Norm, ValueId)>,
    linears: Vec<(Linear, ValueId, ValueId)>,
    glu: Option<(Activation, ValueId, ValueId, ValueId)>,
    /// The other summand, and the sum.
    add: Option<(ValueId, ValueId)>,
}

/// One matrix of a launch.
struct Product {
    linear: Linear,
    weight: Slice,
    bias: Option<Place>,
    out: Place,
}

impl StepBuilder<'_, '_> {
    fn parts(&self) -> Parts {
        let mut parts = Parts::default();
        let mut product = None;
        for id in &self.step.nodes {
            let node = self.graph.node(*id);
            let out = node.outs[0];
            match &node.op {
                Op::Norm(norm) => parts.norm = Some((*norm, node.ins[0])),
                Op::Linear(l) => {
                    parts.linears.push((*l, node.ins[0], out));
                    product = Some(out);
                }
                Op::Glu(a) => parts.glu = Some((*a, node.ins[0], node.ins[1], out)),
                Op::Add => {
                    let other = node.ins.iter().copied().find(|v| Some(*v) != product);
                    parts.add = other.map(|o| (o, out));
                }
                _ => {}
            }
        }
        parts
    }

    /// The launches of a step of products.
    pub(super) fn products(&mut self) -> Result<Vec<Launch>, RunError> {
        let parts = self.parts();
        let Some((_, input, _)) = parts.linears.first() else {
            return Err(RunError::Plan("a step of products without one".into()));
        };
        let x = parts.norm.as_ref().map_or(*input, |(_, x)| *x);
        if !select::is_few(self.graph.ty(x).rows(&self.graph.key)) {
            return parts.linears.iter().map(|l| self.matmul(x, &parts, l)).collect();
        }
        if let Some((_, gate, up, _)) = parts.glu {
            let find = |value| parts.linears.iter().find(|(_, _, out)| *out == value);
            let (Some(gate), Some(up)) = (find(gate), find(up)) else {
                return Err(RunError::Plan("a gated unit without its products".into()));
            };
            return Ok(vec![self.matvec(x, &parts, &[gate, up])?]);
        }
        // Matrices of one type run together.
        let mut types: Vec<WeightType> = parts.linears.iter().map(|(l, ..)| self.ty(l.weight)).collect();
        types.sort_unstable();
        types.dedup();
        let mut launches = Vec::new();
        for ty in types {
            let alike: Vec<_> = parts.linears.iter().filter(|(l, ..)| self.ty(l.weight) == ty).collect();
            for group in alike.chunks(select::MATRICES) {
                launches.push(self.matvec(x, &parts, group)?);
            }
        }
        Ok(launches)
    }

    fn ty(&self, weight: WeightId) -> WeightType {
        self.compiler.weights.table().info(weight).ty
    }

    fn row_bytes(&self, weight: WeightId) -> u32 {
        self.compiler.weights.table().info(weight).row_bytes() as u32
    }

    /// The used rows of a matrix, with their part of the bias.
    fn product(&self, (linear, _, out): &(Linear, ValueId, ValueId)) -> Result<Product, RunError> {
        let row_bytes = u64::from(self.row_bytes(linear.weight));
        let (first, rows) = (u64::from(linear.first), u64::from(linear.rows));
        let weight = self.matrix(linear.weight)?.part(first * row_bytes, rows * row_bytes);
        let bias = match linear.bias {
            Some(b) => Some(Place::Fixed(self.compiler.weights.vector(b)?.part(4 * first, 4 * rows))),
            None => None,
        };
        // A value inside the step has no place.
        let inside = !self.step.outs.contains(out);
        let out = if inside { Place::Nothing } else { self.place(*out)? };
        Ok(Product { linear: *linear, weight, bias, out })
    }

    /// Few rows of activations times up to three matrices.
    fn matvec(
        &mut self,
        x: ValueId,
        parts: &Parts,
        group: &[&(Linear, ValueId, ValueId)],
    ) -> Result<Launch, RunError> {
        let mut products = group.iter().map(|l| self.product(l)).collect::<Result<Vec<_>, _>>()?;
        let gated = parts.glu.is_some();
        if let Some((_, _, _, out)) = parts.glu {
            products[0].out = self.place(out)?;
        }
        if let Some((_, sum)) = parts.add {
            products[0].out = self.place(sum)?;
        }
        let residual = parts.add.map(|(other, _)| self.place(other)).transpose()?;
        let biases =
            (0..products.len()).filter(|i| products[*i].bias.is_some()).map(|i| 1u32 << i).sum::<u32>();
        let batch = if self.graph.ty(x).rows(&self.graph.key) == 1 { 1 } else { 4 };
        let weight = group[0].0.weight;
        let library = Library::plain("matvec").with("WEIGHT", self.ty(weight)).with("BATCH", batch);
        let norm = parts.norm.as_ref().map(|(norm, _)| *norm);
        let function = Function::new(library, "matvec")
            .set("activation", parts.glu.as_ref().map_or(0, |(a, ..)| activation(*a)))
            .set("norm_first", norm.is_some())
            .set("gated", gated)
            .set("has_residual", residual.is_some())
            .set("biases", biases);
        let mut call = self
            .function(function)
            .bind("x", self.place(x)?)
            .bind_some("norm_weight", self.vector(norm.and_then(|n| n.weight))?)
            .bind_some("residual", residual);
        let names = [("w0", "bias0", "y0"), ("w1", "bias1", "y1"), ("w2", "bias2", "y2")];
        let counts: Vec<u32> = products.iter().map(|p| p.linear.rows).collect();
        let mut products = products.into_iter();
        for (w, bias, y) in names {
            let product = products.next();
            let (weight, own_bias, out) = match product {
                Some(p) => (Place::Fixed(p.weight), p.bias, p.out),
                None => (Place::Nothing, None, Place::Nothing),
            };
            call = call.bind(w, weight).bind_some(bias, own_bias).bind(y, out);
        }
        let count = |i: usize| counts.get(i).copied().unwrap_or(0);
        let args = MatvecArgs {
            cols: self.cols(x),
            tokens: 0,
            row_bytes: self.row_bytes(weight),
            rows0: count(0),
            rows1: if gated { 0 } else { count(1) },
            rows2: count(2),
            eps: norm.map_or(0.0, |n| n.eps),
        };
        let rows_of_tile = if gated { ROWS / 2 } else { ROWS };
        let tiles =
            [args.rows0, args.rows1, args.rows2].map(|n| n.div_ceil(rows_of_tile)).iter().sum::<u32>();
        let rows = self.rows(x);
        self.finish(call, SIMDGROUPS * self.caps().simd_width, move |c| {
            let tokens = rows(c);
            Shape {
                args: ArgBytes::of(MatvecArgs { tokens, ..args }),
                grid: [tiles.div_ceil(SIMDGROUPS), tokens.div_ceil(batch), 1],
            }
        })
    }

    /// Many rows of activations times one matrix.
    fn matmul(
        &mut self,
        x: ValueId,
        parts: &Parts,
        linear: &(Linear, ValueId, ValueId),
    ) -> Result<Launch, RunError> {
        let mut product = self.product(linear)?;
        if let Some((_, sum)) = parts.add {
            product.out = self.place(sum)?;
        }
        let residual = parts.add.map(|(other, _)| self.place(other)).transpose()?;
        let weight = product.linear.weight;
        let function = Function::new(self.matmul_library(weight), "matmul")
            .set("has_bias", product.bias.is_some())
            .set("has_residual", residual.is_some());
        let call = self
            .function(function)
            .bind("x", self.place(x)?)
            .bind("w", Place::Fixed(product.weight))
            .bind_some("bias", product.bias)
            .bind_some("residual", residual)
            .bind("counts", Place::Nothing)
            .bind("lists", Place::Nothing)
            .bind("y", product.out);
        let args = MatmulArgs {
            cols: self.cols(x),
            tokens: 0,
            rows: product.linear.rows,
            row_bytes: self.row_bytes(weight),
            used: 1,
        };
        let rows = self.rows(x);
        self.finish(call, TILE_THREADS, move |c| {
            let tokens = rows(c);
            Shape {
                args: ArgBytes::of(MatmulArgs { tokens, ..args }),
                grid: [args.rows.div_ceil(TILE_OUTPUTS), tokens.div_ceil(TILE_TOKENS), 1],
            }
        })
    }

    fn matmul_library(&self, weight: WeightId) -> Library {
        Library::plain("matmul")
            .with("WEIGHT", self.ty(weight))
            .with("SIMDGROUP_MATRIX", u32::from(self.caps().simdgroup_matrix))
    }

    /// Many rows of activations times the matrices of chosen experts: rows are sorted by expert first.
    fn many_experts(
        &mut self,
        (weight, bias): (WeightId, Option<WeightId>),
        args: ExpertArgs,
        (x, ids, out): (ValueId, ValueId, ValueId),
        region: Region,
    ) -> Result<Vec<Launch>, RunError> {
        let experts = self.compiler.weights.table().info(weight).experts;
        let counts = Place::Scratch { region, first: 0 };
        let lists = Place::Scratch { region, first: 4 * experts as usize };
        let sort = self
            .call(Library::plain("route"), "sort_by_expert")
            .bind("ids", self.place(ids)?)
            .bind("counts", counts.clone())
            .bind("lists", lists.clone());
        let (rows, threads) = (self.rows(x), self.threads());
        let used = args.used;
        let sort = self.finish(sort, threads, move |c| Shape {
            args: ArgBytes::of(SortArgs { experts, slots: rows(c) * used }),
            grid: [experts.div_ceil(threads), 1, 1],
        })?;
        let own_inputs = self.cols(x) != args.cols;
        let function = Function::new(self.matmul_library(weight), "matmul")
            .set("by_expert", true)
            .set("has_bias", bias.is_some())
            .set("input_per_expert", own_inputs);
        let call = self
            .function(function)
            .bind("x", self.place(x)?)
            .bind("w", Place::Fixed(self.matrix(weight)?))
            .bind_some("bias", self.vector(bias)?)
            .bind("residual", Place::Nothing)
            .bind("counts", counts)
            .bind("lists", lists)
            .bind("y", self.place(out)?);
        let mut product = self.finish(call, TILE_THREADS, move |c| {
            let tokens = rows(c) * used;
            let args =
                MatmulArgs { cols: args.cols, tokens, rows: args.rows, row_bytes: args.row_bytes, used };
            Shape {
                args: ArgBytes::of(args),
                grid: [args.rows.div_ceil(TILE_OUTPUTS), tokens.div_ceil(TILE_TOKENS), experts],
            }
        })?;
        product.barrier = true;
        Ok(vec![sort, product])
    }

    /// Activations times the matrices of chosen experts, plus their biases.
    pub(super) fn experts(
        &mut self,
        (weight, bias): (WeightId, Option<WeightId>),
        used: u32,
        x: ValueId,
        ids: ValueId,
        out: ValueId,
    ) -> Result<Vec<Launch>, RunError> {
        let info = self.compiler.weights.table().info(weight);
        let args = ExpertArgs {
            cols: info.cols as u32,
            used,
            rows: (info.rows / u64::from(info.experts.max(1))) as u32,
            row_bytes: info.row_bytes() as u32,
        };
        if let Some(region) = self.step.scratch {
            return self.many_experts((weight, bias), args, (x, ids, out), region);
        }
        let library = Library::plain("matvec").with("WEIGHT", info.ty).with("BATCH", 1);
        let own_inputs = self.cols(x) != args.cols;
        let function = Function::new(library, "matvec_experts")
            .set("input_per_expert", own_inputs)
            .set("biases", u32::from(bias.is_some()));
        let call = self
            .function(function)
            .bind("x", self.place(x)?)
            .bind("w", Place::Fixed(self.matrix(weight)?))
            .bind_some("bias", self.vector(bias)?)
            .bind("ids", self.place(ids)?)
            .bind("y", self.place(out)?);
        let rows = self.rows(x);
        let launch = self.finish(call, SIMDGROUPS * self.caps().simd_width, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.rows.div_ceil(ROWS * SIMDGROUPS), used, rows(c)],
        })?;
        Ok(vec![launch])
    }

    /// The first node of the step with an operation that `pick` knows.
    pub(super) fn find<T>(&self, pick: impl Fn(&Op) -> Option<T>) -> Option<(NodeId, T)> {
        self.step.nodes.iter().find_map(|n| pick(&self.graph.node(*n).op).map(|t| (*n, t)))
    }
}
