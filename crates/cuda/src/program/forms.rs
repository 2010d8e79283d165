//! How values between the kernels of one row lie in memory.
//!
//! Most are f32. A product that several blocks share is left as two summands, the second of them in a buffer apart,
//! for a reader that adds them on its way. What a gated product hands to the next is left as int8 activations. Products of
//! a few rows may be left as several summands for the step that follows.

use std::collections::{HashMap, HashSet};

use wootz_graph::{KvType, NodeId, Plan, Step, ValueId, WeightTable};
use wootz_quant::WeightType;

use super::batch;
use crate::experts::Router;
use crate::fuse::{Attend, Products};
use crate::select;
use crate::tiles;

/// Buffers of second summands, which steps take in turn.
pub(crate) const TAIL_BUFFERS: usize = 4;

/// A second summand: its buffer, and its offset there in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    buffer: usize,
    offset: usize,
}

/// The forms of a plan's values.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    tails: HashMap<ValueId, Tail>,
    acts: HashSet<ValueId>,
    /// Products of several rows whose reader adds summands, and whether that is attention.
    parts: HashMap<ValueId, bool>,
    /// Results of attention that products of several rows read, and whether these take images of bf16.
    images: HashMap<ValueId, bool>,
    /// Bytes of a buffer of second summands.
    pub(crate) tail_bytes: usize,
}

impl Forms {
    /// The forms of a plan's values; `fast_attend` says whether attention has its fast kernel.
    pub(crate) fn new(plan: &Plan, weights: &WeightTable, fast_attend: bool, cache: KvType) -> Forms {
        let mut forms = Forms::default();
        let mut turn = 0;
        for (index, step) in plan.steps.iter().enumerate() {
            let outs: Vec<ValueId> = match step.kernel {
                select::MATVEC => {
                    let products = Products::of(&plan.graph, &step.nodes);
                    if let Some(glu) = products.glu {
                        let out = plan.graph.node(glu).outs[0];
                        if forms.fits_acts(plan, weights, out) {
                            forms.acts.insert(out);
                        }
                        continue;
                    }
                    products.linears.iter().map(|n| plan.graph.node(*n).outs[0]).collect()
                }
                select::EXPERTS if plan.graph.ty(step.outs[0]).rows(&plan.graph.key) <= 1 => {
                    step.outs.clone()
                }
                _ => continue,
            };
            // The readers come within the next two steps: long before the buffer's next turn.
            let readers = &plan.steps[index + 1..plan.steps.len().min(index + 3)];
            if outs.iter().any(|v| !forms.adds(plan, readers, *v, fast_attend)) {
                continue;
            }
            let mut offset = 0;
            for out in outs {
                forms.tails.insert(out, Tail { buffer: turn % TAIL_BUFFERS, offset });
                offset += (4 * plan.graph.ty(out).cols() as usize).next_multiple_of(256);
            }
            forms.tail_bytes = forms.tail_bytes.max(offset);
            turn += 1;
        }
        for [step, next] in plan.steps.array_windows().filter(|[step, _]| step.kernel == select::PRODUCTS) {
            let products = Products::of(&plan.graph, &step.nodes);
            let outs = products.linears.iter().map(|n| plan.graph.node(*n).outs[0]);
            let outs: Vec<ValueId> = outs.collect();
            let next_adds = |v: &ValueId| forms.adds(plan, std::slice::from_ref(next), *v, fast_attend);
            if products.glu.is_none() && outs.iter().all(next_adds) {
                forms.parts.extend(outs.into_iter().map(|v| (v, next.kernel == select::ATTEND)));
            }
        }
        for [step, next] in
            plan.steps.array_windows().filter(|[step, _]| step.kernel == select::ATTEND && fast_attend)
        {
            let Some(out) = step.outs.first() else { continue };
            let bf16 = image_type(plan, weights, next, *out);
            // Values of a cache of f16 stay in its range, so their mean needs no scale; bf16 has the range of f32.
            if let Some(bf16) = bf16.filter(|bf16| *bf16 || cache == KvType::F16) {
                forms.images.insert(*out, bf16);
            }
        }
        forms
    }

    /// Whether attention leaves the 16-bit image of its result, and then whether it is of bf16; in steps whose tokens are
    /// all of different sequences.
    pub(crate) fn image(&self, value: ValueId, apart: bool) -> Option<bool> {
        self.images.get(&value).copied().filter(|_| apart)
    }

    /// Whether the reader of a product of several rows adds its summands, in steps whose tokens are all of different
    /// sequences or in all.
    pub(crate) fn takes_parts(&self, value: ValueId, apart: bool) -> bool {
        self.parts.get(&value).is_some_and(|by_attention| apart || !by_attention)
    }

    /// The address of a value's second summand, if it has one; `base` is that of the buffers.
    pub(crate) fn tail(&self, value: ValueId, base: u64) -> Option<u64> {
        let tail = self.tails.get(&value)?;
        Some(base + (tail.buffer * self.tail_bytes + tail.offset) as u64)
    }

    /// Whether a value is left as int8 activations.
    pub(crate) fn is_acts(&self, value: ValueId) -> bool {
        self.acts.contains(&value)
    }

    /// Whether some of these steps are all that read a value, and add its summands.
    fn adds(&self, plan: &Plan, readers: &[Step], value: ValueId, fast_attend: bool) -> bool {
        let all = plan.graph.readers(value).count();
        let own = readers.iter().filter(|step| step.ins.contains(&value));
        let is_summand = |(x, y): (ValueId, Option<ValueId>)| {
            y == Some(value) && x != value && !self.tails.contains_key(&x)
        };
        let mut found = 0;
        for step in own {
            let adds = match step.kernel {
                select::ATTEND => fast_attend,
                select::MATVEC | select::PRODUCTS => {
                    is_summand(Products::of(&plan.graph, &step.nodes).input(&plan.graph))
                }
                select::ROUTER => {
                    Router::of(&plan.graph, &step.nodes).is_some_and(|r| is_summand(r.input(&plan.graph)))
                }
                _ => false,
            };
            if !adds {
                return false;
            }
            found += step.nodes.iter().filter(|n| plan.graph.node(**n).ins.contains(&value)).count();
        }
        found == all && !plan.graph.is_output(value)
    }

    /// Whether all that reads a value multiplies it with types that take int8 activations.
    fn fits_acts(&self, plan: &Plan, weights: &WeightTable, value: ValueId) -> bool {
        let cols = plan.graph.ty(value).cols();
        let reads = |step: &&Step| step.ins.contains(&value);
        let takes = |step: &Step| {
            let products = Products::of(&plan.graph, &step.nodes);
            step.kernel == select::MATVEC
                && products.add.is_none()
                && products.norm.is_none()
                && products.linears.iter().all(|n| {
                    let weight = plan.graph.node(*n).op.weights().next();
                    weight.is_some_and(|w| !tiles::is_float(weights.info(w).ty))
                })
        };
        let readers: Vec<&Step> = plan.steps.iter().filter(reads).collect();
        // They take the place of the f32 value.
        let fits = tiles::acts_bytes(cols) <= 4 * cols as usize;
        fits && !readers.is_empty() && readers.into_iter().all(takes) && !plan.graph.is_output(value)
    }
}

/// Whether the image of a value is of bf16, if products of several rows are all that reads it, and read it as it is.
fn image_type(plan: &Plan, weights: &WeightTable, reader: &Step, value: ValueId) -> Option<bool> {
    let graph = &plan.graph;
    let ty = graph.ty(value);
    let alone = graph.readers(value).count() == reader.nodes.len() && !graph.is_output(value);
    if reader.kernel != select::PRODUCTS || !alone || !batch::image_fits(ty.rows(&graph.key), ty.cols()) {
        return None;
    }
    let products = Products::of(graph, &reader.nodes);
    let takes_bf16 = |n: &NodeId| graph.node(*n).op.weights().all(|w| weights.info(w).ty == WeightType::BF16);
    let first = products.linears.first().map(takes_bf16)?;
    let same = products.linears.iter().all(|n| takes_bf16(n) == first && graph.node(*n).ins[0] == value);
    (same && products.linears.len() == reader.nodes.len()).then_some(first)
}

/// Whether attention of a plan's cache types and heads has its fast kernel.
pub(crate) fn has_fast_attend(plan: &Plan, layout: &wootz_graph::CacheLayout) -> bool {
    let mut attends = plan.steps.iter().filter(|s| s.kernel == select::ATTEND);
    attends.all(|step| {
        Attend::of(&plan.graph, &step.nodes).is_some_and(|a| super::attend::is_fused(&plan.graph, layout, &a))
    })
}
