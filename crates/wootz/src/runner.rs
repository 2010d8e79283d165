//! Steps of a model on its devices: makes plans as they are needed and runs them.
//!
//! Each device computes a run of layers, a [`Stage`]; a step goes through all of them in order. Hidden states pass from
//! one to the next through the host: some KiB a token.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use wootz_graph::{
    Backend, CacheLayout, Device, DeviceLimits, Executor, Graph, GraphKey, LoadRequest, MemoryUse, Outputs,
    Picked, Plan, ProgramId, Reach, RunError, Sampling, StepInputs, StepOutput, StepTime, Threads, Ticket,
    Wants, passes, split,
};

use crate::error::Error;
use crate::model::Model;
use crate::placement::Place;

/// Cached positions that the smallest plan is made for.
const MIN_SPAN: usize = 256;

/// Tokens of a piece of a step, at least, and pieces at most: stages work on pieces of their own at the same time, but
/// products of few tokens are slower.
const PIECE: usize = 256;
const PIECES: usize = 4;

/// A run of layers on a device.
struct Stage {
    backend: Arc<dyn Backend>,
    device: Arc<dyn Device>,
    executor: Box<dyn Executor>,
    layers: usize,
}

/// A model on its devices.
pub(crate) struct Runner {
    model: Arc<Model>,
    stages: Vec<Stage>,
    /// A program for each stage.
    programs: HashMap<GraphKey, Vec<ProgramId>>,
    context: usize,
    /// The step that was submitted last, if it picks tokens.
    picking: Option<Ticket>,
    /// What a step picked, where it was waited for early: a step after it begins on another device.
    told: Option<(Ticket, Result<Vec<Picked>, RunError>)>,
    /// What each stage was handed by the one before.
    hidden: Vec<Vec<f32>>,
    is_tracing: bool,
}

impl Runner {
    /// Loads the parts of `graph`, which uses all weights, each on its device with its caches; `progress` is told the bytes
    /// of weights done.
    pub(crate) fn load(
        model: Arc<Model>,
        places: Vec<Place>,
        graph: Graph,
        caches: &CacheLayout,
        context: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Runner, Error> {
        let layers: Vec<usize> = places.iter().map(|place| place.layers).collect();
        let (mut stages, mut before) = (Vec::new(), 0);
        for (Place { backend, device, layers, .. }, part) in places.into_iter().zip(split(graph, &layers)?) {
            let request = LoadRequest {
                weights: model.arch().weights().clone(),
                source: model.weight_source(),
                caches: CacheLayout { caches: part.caches.clone(), ..caches.clone() },
                graph: &part,
            };
            let executor = device.load(request, &mut |bytes| progress(before + bytes))?;
            before += part.weight_bytes(model.arch().weights());
            stages.push(Stage { backend, device, executor, layers });
        }
        let (programs, hidden) = (HashMap::new(), vec![Vec::new(); stages.len()]);
        let (picking, told, is_tracing) = (None, None, false);
        Ok(Runner { model, stages, programs, context, picking, told, hidden, is_tracing })
    }

    /// Makes the programs of the commonest steps, a token and a batch of `batch` tokens, so that no request waits for
    /// kernels to be compiled, and memory that does not suffice shows at once.
    ///
    /// # Errors
    /// A device lacks a kernel, or memory for values.
    pub(crate) fn warm_up(&mut self, batch: usize) -> Result<(), Error> {
        let wants = self.model.arch().wants();
        for tokens in [1, batch] {
            self.prepare(GraphKey { wants, ..key(tokens, 1, 1, tokens == 1, tokens, self.context) })?;
        }
        Ok(())
    }

    /// The stage that returns rows and picks tokens.
    fn last(&mut self) -> &mut dyn Executor {
        let last = self.stages.len() - 1;
        &mut *self.stages[last].executor
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
        let told;
        let mut inputs = *inputs;
        if self.stages.len() > 1 && inputs.tokens.iter().any(|token| *token < 0) {
            told = self.tell_picked(inputs.tokens)?;
            inputs.tokens = &told;
        }
        let pieces = match self.stages.len() > 1 && !all_rows && !self.is_tracing {
            // Between pieces, states are not kept.
            true if self.model.arch().hparams().causal && !self.has_states() => pieces(&inputs),
            _ => std::iter::once(0..inputs.tokens.len()).collect(),
        };
        let mut keys = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let rows = if piece.end == inputs.tokens.len() { inputs.outputs.len() } else { 0 };
            let sequences = inputs.sequences[piece.clone()].last().map_or(1, |s| *s as usize + 1);
            let key = key(piece.len(), sequences, rows, all_rows, span, self.context);
            keys.push(GraphKey { wants, ..key });
            self.prepare(keys[keys.len() - 1])?;
        }
        let (last_piece, last_stage) = (pieces.len() - 1, self.stages.len() - 1);
        let first_row = pieces[last_piece].start as i32;
        let outputs: Vec<i32> = inputs.outputs.iter().map(|row| row - first_row).collect();
        let part = |piece: usize| StepInputs {
            tokens: &inputs.tokens[pieces[piece].clone()],
            positions: &inputs.positions[pieces[piece].clone()],
            streams: inputs.streams_of(pieces[piece].clone()),
            sequences: &inputs.sequences[pieces[piece].clone()],
            outputs: if piece == last_piece { &outputs } else { &[] },
            ..inputs
        };
        // Each stage works on a piece of its own: the first is ahead of the last.
        for turn in 0..last_piece + last_stage {
            let mut running = Vec::new();
            for (at, stage) in self.stages.iter_mut().enumerate() {
                let Some(piece) = turn.checked_sub(at).filter(|piece| *piece <= last_piece) else { continue };
                let step = StepInputs { hidden: &self.hidden[at], ..part(piece) };
                running.push((at, stage.executor.submit(self.programs[&keys[piece]][at], &step)?));
            }
            for (at, ticket) in running {
                let rows = self.stages[at].executor.wait(ticket)?.data;
                if at < last_stage {
                    self.hidden[at + 1].clear();
                    self.hidden[at + 1].extend_from_slice(rows);
                }
            }
        }
        let step = StepInputs { hidden: &self.hidden[last_stage], ..part(last_piece) };
        let program = self.programs[&keys[last_piece]][last_stage];
        let executor = &mut self.stages[last_stage].executor;
        let ticket = match sampling {
            Some(sampling) => executor.submit_picking(program, &step, sampling)?,
            None => executor.submit(program, &step)?,
        };
        self.picking = sampling.map(|_| ticket);
        Ok(ticket)
    }

    /// Whether layers carry a state from token to token.
    fn has_states(&self) -> bool {
        self.model.arch().reaches().contains(&Reach::State)
    }

    /// Tokens with those in place that the step before picked; waits for it.
    fn tell_picked(&mut self, tokens: &[i32]) -> Result<Vec<i32>, RunError> {
        let failed = || RunError::Input("the step before picked no tokens".into());
        let before = self.picking.ok_or_else(failed)?;
        if self.told.as_ref().is_none_or(|(ticket, _)| *ticket != before) {
            self.told = Some((before, self.last().wait_picked(before)));
        }
        // Whoever waits for a step that failed hears why, and gives this one up.
        let picked = self.told.as_ref().and_then(|(_, picked)| picked.as_ref().ok()).ok_or_else(failed)?;
        let token = |token: &i32| match u32::try_from(*token) {
            Ok(_) => Ok(*token),
            Err(_) => match picked.get((-1 - i64::from(*token)) as usize) {
                Some(Picked::Token(token) | Picked::BadLogit { token, .. }) => Ok(*token as i32),
                Some(Picked::NoCandidate) => Ok(0),
                None => Err(failed()),
            },
        };
        tokens.iter().map(token).collect()
    }

    /// What a step returned.
    pub(crate) fn output(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, Error> {
        Ok(self.last().wait(ticket)?)
    }

    /// Whether tokens can be picked in this way.
    pub(crate) fn can_pick(&mut self, sampling: &Sampling<'_>) -> bool {
        self.last().can_pick(sampling)
    }

    /// The tokens that a step picked.
    pub(crate) fn picked(&mut self, ticket: Ticket) -> Result<Vec<Picked>, Error> {
        let told = self.told.take_if(|(told, _)| *told == ticket);
        let picked = told.map_or_else(|| self.last().wait_picked(ticket), |(_, picked)| picked)?;
        if self.picking == Some(ticket) {
            self.told = Some((ticket, Ok(picked.clone())));
        }
        Ok(picked)
    }

    /// Makes the programs for a key, unless they are there.
    fn prepare(&mut self, key: GraphKey) -> Result<(), Error> {
        if self.programs.contains_key(&key) {
            return Ok(());
        }
        let plans = self.plans(key)?;
        let stages = self.stages.iter_mut().zip(plans);
        let programs = stages.map(|(stage, plan)| stage.executor.compile(plan)).collect::<Result<_, _>>()?;
        self.programs.insert(key, programs);
        Ok(())
    }

    /// The plan of each stage for a key.
    fn plans(&self, key: GraphKey) -> Result<Vec<Plan>, Error> {
        let layers: Vec<usize> = self.stages.iter().map(|stage| stage.layers).collect();
        let parts = split(self.model.arch().graph(key)?, &layers)?;
        let weights = self.model.arch().weights();
        let stages = self.stages.iter().zip(parts);
        Ok(stages
            .map(|(stage, part)| passes::compile(part, weights, &*stage.backend))
            .collect::<Result<_, _>>()?)
    }

    /// Memory held on all devices.
    pub(crate) fn memory(&self) -> MemoryUse {
        self.stages.iter().map(|stage| stage.executor.memory()).fold(MemoryUse::default(), |sum, own| {
            MemoryUse {
                weights: sum.weights + own.weights,
                caches: sum.caches + own.caches,
                scratch: sum.scratch + own.scratch,
            }
        })
    }

    /// What each device can do at most, measured on it.
    pub(crate) fn limits(&self) -> Result<Vec<DeviceLimits>, Error> {
        Ok(self.stages.iter().map(|stage| stage.device.limits()).collect::<Result<_, _>>()?)
    }

    /// The threads of a device that computes on the processor, if one does.
    pub(crate) fn threads(&self) -> Option<Arc<dyn Threads>> {
        self.stages.iter().find_map(|stage| stage.device.threads())
    }

    /// Copies physical cache blocks of a group: (source, destination).
    pub(crate) fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), Error> {
        Ok(self.stages.iter_mut().try_for_each(|stage| stage.executor.copy_blocks(group, pairs))?)
    }

    /// Reads one physical block of every cache of a group: that of all stages, one after the other.
    pub(crate) fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        Ok(self.stages.iter_mut().try_for_each(|stage| stage.executor.read_block(group, block, out))?)
    }

    /// Restores what [`read_block`](Self::read_block) gave.
    pub(crate) fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        let last = self.stages.len() - 1;
        for stage in &mut self.stages[..last] {
            // What a stage would give says how much is its own.
            let mut own = Vec::new();
            stage.executor.read_block(group, block, &mut own)?;
            let (own, after) = rest.split_at_checked(own.len()).ok_or_else(|| {
                RunError::Input(format!("the bytes of a block end early: there are {}", bytes.len()))
            })?;
            stage.executor.write_block(group, block, own)?;
            rest = after;
        }
        Ok(self.last().write_block(group, block, rest)?)
    }

    /// Bytes that [`read_block`](Self::read_block) gives for a block of a group.
    pub(crate) fn block_bytes(&mut self, group: u32) -> Result<usize, Error> {
        let mut bytes = Vec::new();
        self.read_block(group, 0, &mut bytes)?;
        Ok(bytes.len())
    }

    /// Starts or stops the timing of plan steps.
    pub(crate) fn set_tracing(&mut self, on: bool) {
        self.is_tracing = on;
        self.stages.iter_mut().for_each(|stage| stage.executor.set_tracing(on));
    }

    /// Step times since the last call, with the plans that they belong to and the number of the device.
    pub(crate) fn take_trace(&mut self) -> Result<Vec<(usize, Plan, Vec<StepTime>)>, Error> {
        let times: Vec<Vec<StepTime>> = self.stages.iter_mut().map(|s| s.executor.take_trace()).collect();
        let mut traces = Vec::new();
        for (key, programs) in &self.programs {
            let of_device = |at: usize| -> Vec<StepTime> {
                times[at].iter().filter(|t| t.program == programs[at]).copied().collect()
            };
            let own: Vec<Vec<StepTime>> = (0..programs.len()).map(of_device).collect();
            if own.iter().any(|times| !times.is_empty()) {
                let plans = self.plans(*key)?.into_iter().zip(own).enumerate();
                traces.extend(plans.map(|(device, (plan, times))| (device, plan, times)));
            }
        }
        Ok(traces)
    }
}

/// The pieces in which stages compute the tokens of a step at the same time, each after the other; one for short steps,
/// for several sequences, and where rows before the last piece are to be returned.
fn pieces(inputs: &StepInputs<'_>) -> Vec<Range<usize>> {
    let n = inputs.tokens.len();
    let whole = std::iter::once(0..n).collect();
    if n < 2 * PIECE || inputs.sequences.last() != Some(&0) {
        return whole;
    }
    let size = n.div_ceil((n / PIECE).min(PIECES));
    let last = (n - 1) / size * size;
    match inputs.outputs.iter().all(|row| *row as usize >= last) {
        true => (0..n).step_by(size).map(|first| first..n.min(first + size)).collect(),
        false => whole,
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

#[cfg(test)]
mod tests;
