//! Steps of a model on a device: makes plans as they are needed and runs them.

use std::collections::HashMap;
use std::sync::Arc;

use wootz_graph::{
    Backend, Executor, Graph, GraphKey, MemoryUse, Outputs, Plan, ProgramId, Sampling, StepInputs,
    StepOutput, StepTime, Ticket, Wants, passes,
};

use crate::error::Error;
use crate::model::Model;

/// Cached positions that the smallest plan is made for.
const MIN_SPAN: usize = 256;

/// A model on a device.
pub(crate) struct Runner {
    model: Arc<Model>,
    backend: Arc<dyn Backend>,
    executor: Box<dyn Executor>,
    programs: HashMap<GraphKey, ProgramId>,
    plans: Vec<(ProgramId, GraphKey)>,
    context: usize,
}

impl Runner {
    pub(crate) fn new(
        model: Arc<Model>,
        backend: Arc<dyn Backend>,
        executor: Box<dyn Executor>,
        context: usize,
    ) -> Runner {
        Runner { model, backend, executor, programs: HashMap::new(), plans: Vec::new(), context }
    }

    /// Starts one step; `span` is the largest number of cached positions that a sequence has after it, `sampling` says
    /// how the device picks tokens where rows are not to be returned.
    pub(crate) fn submit(
        &mut self,
        inputs: &StepInputs<'_>,
        sampling: Option<&[Sampling<'_>]>,
        all_rows: bool,
        span: usize,
        wants: Wants,
    ) -> Result<Ticket, Error> {
        let sequences = inputs.sequences.last().map_or(1, |s| *s as usize + 1);
        let (tokens, outputs) = (inputs.tokens.len(), inputs.outputs.len());
        let key = GraphKey { wants, ..key(tokens, sequences, outputs, all_rows, span, self.context) };
        let program = self.program(key)?;
        Ok(match sampling {
            Some(sampling) => self.executor.submit_picking(program, inputs, sampling)?,
            None => self.executor.submit(program, inputs)?,
        })
    }

    /// What a step returned.
    pub(crate) fn output(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, Error> {
        Ok(self.executor.wait(ticket)?)
    }

    /// The compiled plan for a key.
    pub(crate) fn program(&mut self, key: GraphKey) -> Result<ProgramId, Error> {
        if let Some(program) = self.programs.get(&key) {
            return Ok(*program);
        }
        let plan = compile(&self.model, &*self.backend, key)?;
        let program = self.executor.compile(plan)?;
        self.programs.insert(key, program);
        self.plans.push((program, key));
        Ok(program)
    }

    pub(crate) fn executor(&mut self) -> &mut dyn Executor {
        &mut *self.executor
    }

    /// Bytes that [`Executor::read_block`] gives for a block of a group.
    pub(crate) fn block_bytes(&mut self, group: u32) -> Result<usize, Error> {
        let mut bytes = Vec::new();
        self.executor.read_block(group, 0, &mut bytes)?;
        Ok(bytes.len())
    }

    pub(crate) fn memory(&self) -> MemoryUse {
        self.executor.memory()
    }

    /// Step times since the last call, with the plans that they belong to.
    pub(crate) fn take_trace(&mut self) -> Result<Vec<(Plan, Vec<StepTime>)>, Error> {
        let times = self.executor.take_trace();
        let mut traces = Vec::new();
        for (program, key) in &self.plans {
            let own: Vec<StepTime> = times.iter().filter(|t| t.program == *program).copied().collect();
            if !own.is_empty() {
                traces.push((compile(&self.model, &*self.backend, *key)?, own));
            }
        }
        Ok(traces)
    }
}

/// The plan that runs a step of `tokens` tokens of one sequence, with `span` cached positions, on a backend.
///
/// # Errors
/// There is no such backend, or it lacks a kernel.
pub fn plan(model: &Model, backend: &str, tokens: usize, span: usize) -> Result<Plan, Error> {
    let context = model.arch().hparams().context_length as usize;
    let key = GraphKey { wants: model.arch().wants(), ..key(tokens, 1, 1, false, span, context) };
    compile(model, &*crate::backends::backend(backend)?, key)
}

/// The plan of a model for a key on a backend.
pub(crate) fn compile(model: &Model, backend: &dyn Backend, key: GraphKey) -> Result<Plan, Error> {
    let graph: Graph = model.arch().graph(key)?;
    Ok(passes::compile(graph, model.arch().weights(), backend)?)
}

/// The key of the plan that runs a step for logits: counts are rounded up to powers of two, so that few plans serve all steps.
pub(crate) fn key(
    tokens: usize,
    sequences: usize,
    outputs: usize,
    all_rows: bool,
    span: usize,
    context: usize,
) -> GraphKey {
    let round = |n: usize| n.next_power_of_two() as u32;
    let outputs = match outputs {
        _ if all_rows => Outputs::All,
        0 => Outputs::None,
        n => Outputs::Some(round(n)),
    };
    GraphKey {
        tokens: round(tokens),
        seqs: round(sequences),
        outputs,
        kv_span: span.next_power_of_two().clamp(MIN_SPAN.min(context), context.max(1)) as u32,
        wants: Wants::Logits,
    }
}
