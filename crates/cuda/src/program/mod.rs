//! A plan as launches: every address, shape and weight resolved.

pub(crate) mod attend;
pub(crate) mod batch;
#[cfg(test)]
mod expert_tests;
mod few;
mod forms;
mod matvec;
pub(crate) mod recurrent;
pub(crate) mod router;
mod simple;
pub(crate) mod sorted;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use wootz_graph::op::{Input, Op, Rope};
use wootz_graph::{CacheId, CacheLayout, Plan, Rows, RunError, Type, ValueId};

use crate::args::{Mut, Ptr};
use crate::machine::{DeviceBuffer, Launch, Properties};
use crate::select::{self, Kernels};
use crate::step::{OUTPUTS, StepPlaces, TOKENS};
use crate::weights::Weights;
pub(crate) use few::Added;
pub(crate) use forms::{Forms, TAIL_BUFFERS, has_fast_attend};

/// Cosines and sines of the step's positions, for all layers whose rotary embedding has the same attributes.
pub(crate) struct RopeSlot {
    /// Attributes without the number of heads, on which the table does not depend.
    rope: Rope,
    /// Turns of each pair at position 1, f64.
    pub(crate) turns: DeviceBuffer,
    /// The stream of positions that turns each pair, where there are several.
    streams: Option<DeviceBuffer>,
    /// `[tokens, pairs, 2]`, made by the first step that needs it.
    pub(crate) table: DeviceBuffer,
}

impl RopeSlot {
    pub(crate) fn new(
        rope: &Rope,
        turns: DeviceBuffer,
        streams: Option<DeviceBuffer>,
        table: DeviceBuffer,
    ) -> RopeSlot {
        RopeSlot { rope: *rope, turns, streams, table }
    }

    pub(crate) fn serves(&self, rope: &Rope) -> bool {
        Rope { heads: rope.heads, ..self.rope } == *rope
    }
}

/// A value's place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) address: u64,
    pub(crate) rows: Rows,
    pub(crate) cols: u32,
    /// Rows of the largest step.
    pub(crate) most: u32,
}

impl Value {
    pub(crate) fn ptr<T>(&self) -> Ptr<T> {
        Ptr::new(self.address)
    }

    pub(crate) fn out<T>(&self) -> Mut<T> {
        Mut::new(self.address)
    }
}

/// The further summands of a value: where the first begins, how many there are, and elements from one to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tails {
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) slab: u64,
}

/// Memory that kernels of products and attention share: parts of results, and counters that are zero between kernels;
/// and summands that a step leaves to the next.
///
/// Plans say what they need while they are resolved; the executor makes room and resolves them again.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) partial: u64,
    pub(crate) counters: u64,
    pub(crate) summands: u64,
    /// Images of activations that a step leaves to the next.
    pub(crate) images: u64,
    partial_bytes: Cell<usize>,
    count: Cell<usize>,
    summand_bytes: Cell<usize>,
    image_bytes: Cell<usize>,
}

impl Workspace {
    pub(crate) fn new([partial, counters, summands, images]: [u64; 4]) -> Workspace {
        Workspace { partial, counters, summands, images, ..Workspace::default() }
    }

    /// Bytes of parts, and counters, of one kernel.
    pub(crate) fn need(&self, partial_bytes: usize, counters: usize) {
        self.partial_bytes.set(self.partial_bytes.get().max(partial_bytes));
        self.count.set(self.count.get().max(counters));
    }

    /// Bytes of summands of one step.
    pub(crate) fn need_summands(&self, bytes: usize) {
        self.summand_bytes.set(self.summand_bytes.get().max(bytes));
    }

    /// Bytes of images.
    pub(crate) fn need_images(&self, bytes: usize) {
        self.image_bytes.set(self.image_bytes.get().max(bytes));
    }

    /// Bytes of parts, of counters, of summands and of images of what needs most.
    pub(crate) fn needed(&self) -> [usize; 4] {
        [self.partial_bytes.get(), 4 * self.count.get(), self.summand_bytes.get(), self.image_bytes.get()]
    }
}

/// Where everything that a plan's kernels touch lies.
pub(crate) struct Resolver<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) kernels: Kernels,
    /// Whether all tokens are of different sequences.
    pub(crate) apart: bool,
    /// How values between fast kernels lie in memory.
    pub(crate) forms: &'a Forms,
    /// Buffers of second summands.
    pub(crate) tails: u64,
    /// What the products of several rows resolved so far have left in parts.
    pub(crate) parts: RefCell<HashMap<ValueId, Tails>>,
    /// Products that add to a row, by what they read and by what they would have left.
    pub(crate) added: RefCell<HashMap<ValueId, Added>>,
    pub(crate) workspace: &'a Workspace,
    pub(crate) properties: Properties,
    pub(crate) weights: &'a Weights,
    pub(crate) arena: u64,
    pub(crate) inputs: u64,
    pub(crate) places: &'a StepPlaces,
    pub(crate) layout: &'a CacheLayout,
    pub(crate) caches: &'a [DeviceBuffer],
    pub(crate) ropes: &'a [RopeSlot],
    /// Tokens that the step before picked.
    pub(crate) picked: u64,
}

impl Resolver<'_> {
    /// The launches of each step of the plan.
    ///
    /// # Errors
    /// The plan holds a kernel or a weight that is not there.
    pub(crate) fn launches(&self) -> Result<Vec<Vec<Launch>>, RunError> {
        let mut tables_made = vec![false; self.ropes.len()];
        let mut steps = Vec::with_capacity(self.plan.steps.len());
        for (index, step) in self.plan.steps.iter().enumerate() {
            self.find_added(&self.plan.steps[index..])?;
            let mut launches = Vec::new();
            if tables_made.first() == Some(&false)
                && let Some(launch) = self.embed_with_table(step, &self.ropes[0])?
            {
                tables_made[0] = true;
                steps.push(vec![launch]);
                continue;
            }
            for node in &step.nodes {
                let Op::Rope(rope) = &self.plan.graph.node(*node).op else { continue };
                let index = self.rope_index(rope)?;
                if !std::mem::replace(&mut tables_made[index], true) {
                    launches.push(self.rope_table(&self.ropes[index]));
                }
            }
            launches.extend(match step.kernel {
                select::MATVEC => self.matvec(step)?,
                select::PRODUCTS => self.products(step)?,
                select::ATTEND => self.attend(step)?,
                select::ROUTER => vec![self.router(step)?],
                select::EXPERTS => self.experts(step)?,
                _ => self.step(step)?,
            });
            steps.push(launches);
        }
        Ok(steps)
    }

    /// A value's place.
    pub(crate) fn value(&self, id: ValueId) -> Result<Value, RunError> {
        let Type::Matrix { rows, cols, .. } = self.plan.graph.ty(id) else {
            return Err(RunError::Plan(format!("value {} is a state", id.0)));
        };
        let producer = self.plan.graph.producer(id).map(|n| &self.plan.graph.node(n).op);
        let address = match (producer, self.plan.region(id)) {
            // The engine's values lie among the inputs of the step.
            (Some(Op::Input(input)), _) => {
                let offset = match input {
                    Input::Tokens => self.places.tokens,
                    Input::Positions => self.places.positions,
                    Input::Streams => self.places.streams,
                    Input::OutputRows => self.places.outputs,
                    Input::Hidden { .. } => self.places.hidden,
                };
                self.inputs + offset as u64
            }
            (_, Some(region)) => self.arena + region.offset as u64,
            _ => return Err(RunError::Plan(format!("value {} has no memory", id.0))),
        };
        Ok(Value { address, rows, cols, most: self.plan.graph.ty(id).rows(&self.plan.graph.key) })
    }

    /// The further summands of a value.
    pub(crate) fn tails(&self, id: ValueId) -> Tails {
        match self.forms.tail(id, self.tails) {
            Some(first) => Tails { first, count: 1, slab: 0 },
            None => self.parts.borrow().get(&id).copied().unwrap_or_default(),
        }
    }

    /// Where the number of rows lies.
    pub(crate) fn rows(&self, rows: Rows) -> Ptr<u32> {
        let offset = match rows {
            Rows::Tokens => TOKENS,
            Rows::Outputs => OUTPUTS,
        };
        Ptr::new(self.inputs + offset as u64)
    }

    /// An array of the step's inputs.
    pub(crate) fn input<T>(&self, offset: usize) -> Ptr<T> {
        Ptr::new(self.inputs + offset as u64)
    }

    pub(crate) fn cache(&self, cache: CacheId) -> Result<u64, RunError> {
        let buffer = self.caches.get(cache.0 as usize);
        buffer
            .map(DeviceBuffer::address)
            .ok_or_else(|| RunError::Plan(format!("there is no cache {}", cache.0)))
    }

    fn rope_index(&self, rope: &Rope) -> Result<usize, RunError> {
        let index = self.ropes.iter().position(|slot| slot.serves(rope));
        index.ok_or_else(|| RunError::Plan("a rotary embedding without its table".into()))
    }

    pub(crate) fn rope_slot(&self, rope: &Rope) -> Result<&RopeSlot, RunError> {
        Ok(&self.ropes[self.rope_index(rope)?])
    }
}
