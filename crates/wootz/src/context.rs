//! A model on a device, with sequences whose keys and values are cached. Runs on the caller's thread.

use std::sync::Arc;

use wootz_graph::{
    BLOCK_TOKENS, Backend, BlockTable, CacheLayout, DeviceInfo, DeviceLimits, GraphKey, MemoryUse, OneThread,
    Picked, Plan, Reach, Sampling, StepInputs, StepOutput, StepTime, TableSet, Threads, Ticket, Wants,
    picked_token,
};

use crate::error::Error;
use crate::fit::{fit, layout, sequence_blocks};
use crate::kv::{BlockCopy, Group, GroupKind, KvCache, KvConfig, SeqId};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::placement;
use crate::runner::{self, Runner};

/// A sequence of a context.
pub type SequenceId = SeqId;

/// How much fits a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions of a sequence.
    pub context: usize,
    /// Sequences that fit at full length.
    pub sequences: usize,
    /// Tokens of a step.
    pub batch: usize,
}

/// Which rows of a part of a step are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsWanted {
    /// None: the tokens only fill the cache.
    None,
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// That of every token.
    All,
}

/// Tokens of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct StepPart<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// The tokens that follow what it has.
    pub tokens: &'a [u32],
    /// Rows to return.
    pub rows: RowsWanted,
}

/// A step under way whose tokens the device picks.
pub(crate) struct Picking {
    ticket: Ticket,
    parts: Vec<Growth>,
}

/// How a step lengthens a sequence.
struct Growth {
    sequence: SequenceId,
    before: usize,
    after: usize,
}

/// All sequences of a context may share what they computed.
const NAMESPACE: &str = "";

/// Positions for which room is left where layers are split by memory and the user names no context.
const USUAL: usize = 4096;

/// A model on a device.
pub struct Context {
    model: Arc<Model>,
    info: DeviceInfo,
    placement: Vec<(DeviceInfo, usize)>,
    runner: Runner,
    kv: KvCache,
    layout: CacheLayout,
    limits: Limits,
    buffers: Buffers,
}

/// Step inputs, kept to be filled again.
#[derive(Default)]
struct Buffers {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    sequences: Vec<u32>,
    outputs: Vec<i32>,
}

impl Context {
    /// Loads a model's weights and makes its caches; `progress` is told the bytes of weights done.
    ///
    /// # Errors
    /// There is no such device, or weights or caches do not fit its memory.
    pub fn new(
        model: Arc<Model>,
        options: &ContextOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Context, Error> {
        let wants = model.arch().wants();
        let one = GraphKey { wants, ..runner::key(1, 1, 1, false, 1, 1) };
        let suits = |backend: &dyn Backend| runner::compile(&model, backend, one).is_ok();
        let uses = model.arch().graph(one)?;
        let sequences = options.sequences.max(1);
        let usual = options.context.unwrap_or(USUAL).min(model.arch().hparams().context_length as usize);
        let caches = layout(&model, usual, sequences, options.batch_on(None), options);
        let places = placement::places(options, &uses, model.arch().weights(), &caches, &suits)?;
        let info = placement::together(&places);
        let placement = places.iter().map(|place| (place.info.clone(), place.layers)).collect();
        let (limits, layout) = fit(&model, &places, uses, options)?;
        let key = GraphKey { wants, ..runner::key(limits.batch, 1, 1, false, 1, limits.context) };
        let graph = model.arch().graph(key)?;
        let mut runner = Runner::load(model.clone(), places, graph, &layout, limits.context, progress)?;
        // An encoder's batch is its longest text: most are far shorter.
        if model.arch().hparams().causal {
            runner.warm_up(limits.batch)?;
        }
        let groups = layout.groups.iter().map(|g| Group {
            kind: match g.reach {
                Reach::Full => GroupKind::Full,
                Reach::Window(tokens) => GroupKind::Window { tokens: tokens as usize, slack: limits.batch },
                Reach::State => GroupKind::State,
            },
            blocks: g.blocks,
        });
        let config = KvConfig { block_tokens: BLOCK_TOKENS, groups: groups.collect() };
        let kv = KvCache::new(config).map_err(|e| Error::State(e.to_string()))?;
        Ok(Context { model, info, placement, runner, kv, layout, limits, buffers: Buffers::default() })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device that computes; several are described as one.
    pub fn device(&self) -> &DeviceInfo {
        &self.info
    }

    /// The devices that compute, in order, and the number of layers of each.
    pub fn placement(&self) -> &[(DeviceInfo, usize)] {
        &self.placement
    }

    /// How much fits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Memory held by weights, caches and plans.
    pub fn memory(&self) -> MemoryUse {
        self.runner.memory()
    }

    /// What each device can do at most, measured on it.
    ///
    /// # Errors
    /// A device fails.
    pub fn device_limits(&self) -> Result<Vec<DeviceLimits>, Error> {
        self.runner.limits()
    }

    /// Threads that are idle between steps: a sampler may use them, see [`Sampler::sample_on`](crate::sample::Sampler::sample_on).
    pub fn threads(&self) -> Arc<dyn Threads> {
        self.runner.threads().unwrap_or_else(|| Arc::new(OneThread))
    }

    /// Blocks of each group of caches that a sequence of `length` positions takes at most.
    pub(crate) fn blocks_for(&self, length: usize) -> impl Iterator<Item = usize> + '_ {
        let length = length.min(self.limits.context);
        self.layout.groups.iter().map(move |g| sequence_blocks(g.reach, length, self.limits.batch))
    }

    /// Blocks that each group of caches has.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        self.layout.groups.iter().map(|g| g.blocks as usize)
    }

    /// The state of the caches' bookkeeping.
    pub fn cache_stats(&self) -> crate::kv::KvStats {
        self.kv.stats()
    }

    /// Starts a sequence with as many of `tokens` as the cache holds; their number is returned with it.
    ///
    /// It is 0 where tokens see the whole text: what was computed of another text is of no use then.
    ///
    /// # Errors
    /// The cache has no room.
    pub fn open_prefix(&mut self, tokens: &[u32]) -> Result<(SequenceId, usize), Error> {
        let tokens = if self.model.arch().hparams().causal { tokens } else { &[] };
        let (sequence, found) = self.kv.create(NAMESPACE, tokens);
        self.copy_blocks()?;
        Ok((sequence, found.tokens))
    }

    /// Tokens of a sequence that are computed; 0 for one that is closed.
    pub fn len(&self, sequence: SequenceId) -> usize {
        self.kv.committed(sequence).unwrap_or(0)
    }

    /// Tokens of a sequence, those that are being computed among them; 0 for one that is closed.
    pub(crate) fn length(&self, sequence: SequenceId) -> usize {
        self.kv.tokens(sequence).map_or(0, <[u32]>::len)
    }

    /// Ends a sequence; what it computed may be reused until the room is needed.
    pub fn close(&mut self, sequence: SequenceId) {
        // A sequence that is closed already is what the caller wants.
        let _ = self.kv.free(sequence);
    }

    /// A second sequence with the same tokens; blocks are shared until one of the two writes them.
    ///
    /// # Errors
    /// The sequence is closed.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, Error> {
        Ok(self.kv.fork(sequence)?)
    }

    /// Takes the last tokens of a sequence back, down to `length` or, where a window does not reach back so far or a
    /// recurrent state after so many is not kept, to fewer; returns the length that is left.
    ///
    /// # Errors
    /// The sequence is closed.
    pub fn truncate(&mut self, sequence: SequenceId, length: usize) -> Result<usize, Error> {
        Ok(self.kv.truncate(sequence, length)?)
    }

    /// Computes tokens of one or several sequences in one step. The rows asked for come in the order of the parts:
    /// logits, or what the model gives in their place.
    ///
    /// Windows of a sequence see at most a batch of tokens at once, so a step takes no more than the batch. Where tokens
    /// see the whole text, a sequence takes all of it in one step.
    ///
    /// # Errors
    /// More tokens than the batch, a sequence beyond the context or one that would grow and cannot, a full cache, or a
    /// failed device. After a failure every sequence is as it was before, or shorter where the model has recurrent states
    /// and the device failed; what is missing has to be computed again.
    pub fn step(&mut self, parts: &[StepPart<'_>]) -> Result<StepOutput<'_>, Error> {
        self.step_for(parts, self.model.arch().wants())
    }

    /// As [`step`](Self::step), for rows of one kind.
    pub(crate) fn step_for(&mut self, parts: &[StepPart<'_>], wants: Wants) -> Result<StepOutput<'_>, Error> {
        let (ticket, growth) = self.start(parts, &[], None, wants)?;
        match self.runner.output(ticket) {
            Ok(output) => {
                keep(&mut self.kv, &growth)?;
                Ok(output)
            }
            Err(e) => {
                take_back(&mut self.kv, &growth);
                Err(e)
            }
        }
    }

    /// Whether the device can pick a token in this way.
    pub fn can_pick(&mut self, sampling: &Sampling<'_>) -> bool {
        self.runner.can_pick(sampling)
    }

    /// Computes tokens as [`step`](Self::step) does, and lets the device pick a token from each row asked for, as
    /// `sampling` says for it.
    ///
    /// # Errors
    /// As [`step`](Self::step), or the device cannot pick so.
    pub fn step_picking(
        &mut self,
        parts: &[StepPart<'_>],
        sampling: &[Sampling<'_>],
    ) -> Result<Vec<Picked>, Error> {
        let picking = self.start_picking(parts, &[], sampling)?;
        self.finish_picking(picking)
    }

    /// Starts a step whose tokens the device picks, also while the one before is under way. For a part whose row of
    /// the step before is given in `fed`, the token picked there is the only token, whatever the part says; which
    /// it was has to be told by [`settle`](Self::settle).
    pub(crate) fn start_picking(
        &mut self,
        parts: &[StepPart<'_>],
        fed: &[Option<u32>],
        sampling: &[Sampling<'_>],
    ) -> Result<Picking, Error> {
        let (ticket, parts) = self.start(parts, fed, Some(sampling), Wants::Logits)?;
        Ok(Picking { ticket, parts })
    }

    /// Waits for a step. After a failure, its sequences are as they were before it.
    pub(crate) fn finish_picking(&mut self, picking: Picking) -> Result<Vec<Picked>, Error> {
        match self.runner.picked(picking.ticket) {
            Ok(picked) => {
                keep(&mut self.kv, &picking.parts)?;
                Ok(picked)
            }
            Err(e) => {
                take_back(&mut self.kv, &picking.parts);
                Err(e)
            }
        }
    }

    /// Says which token was fed to the step under way as the last one of a sequence.
    pub(crate) fn settle(&mut self, sequence: SequenceId, token: u32) -> Result<(), Error> {
        Ok(self.kv.settle(sequence, self.length(sequence).saturating_sub(1), token)?)
    }

    /// Gives up a step that builds on one that failed.
    pub(crate) fn abandon(&mut self, picking: Picking) {
        // Whether it fails as well does not matter.
        let _ = self.runner.picked(picking.ticket);
        take_back(&mut self.kv, &picking.parts);
    }

    /// Starts a step; a failure changes no sequence.
    fn start(
        &mut self,
        parts: &[StepPart<'_>],
        fed: &[Option<u32>],
        sampling: Option<&[Sampling<'_>]>,
        wants: Wants,
    ) -> Result<(Ticket, Vec<Growth>), Error> {
        let total: usize = parts.iter().map(|p| p.tokens.len()).sum();
        if total == 0 || total > self.limits.batch || parts.iter().any(|p| p.tokens.is_empty()) {
            let what = format!("{total} tokens in {} parts, at most {}", parts.len(), self.limits.batch);
            return Err(wootz_graph::RunError::Input(what).into());
        }
        let growth = parts.iter().map(|part| {
            let before = self.length(part.sequence);
            Growth { sequence: part.sequence, before, after: before + part.tokens.len() }
        });
        let growth: Vec<Growth> = growth.collect();
        if let Some(grown) = growth.iter().find(|g| g.after > self.limits.context) {
            return Err(Error::ContextFull {
                prompt: grown.after,
                max_tokens: 0,
                context: self.limits.context,
                hint: "",
            });
        }
        if !self.model.arch().hparams().causal && growth.iter().any(|g| g.before > 0) {
            return Err(Error::WrongUse { gives: self.model.gives(), asked: "a text that goes on" });
        }
        if let Err(e) = self.append(parts) {
            for grown in &growth {
                // That cannot fail for an open sequence.
                let _ = self.kv.retract(grown.sequence, grown.before);
            }
            return Err(e);
        }
        match self.run(parts, fed, sampling, &growth, wants) {
            Ok(ticket) => Ok((ticket, growth)),
            Err(e) => {
                take_back(&mut self.kv, &growth);
                Err(e)
            }
        }
    }

    fn append(&mut self, parts: &[StepPart<'_>]) -> Result<(), Error> {
        for part in parts {
            self.kv.append(part.sequence, part.tokens)?;
        }
        self.copy_blocks()
    }

    /// Performs the copies that the bookkeeping has asked for.
    fn copy_blocks(&mut self) -> Result<(), Error> {
        for BlockCopy { group, src, dst } in self.kv.take_copies() {
            self.runner.copy_blocks(group as u32, &[(src, dst)])?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        parts: &[StepPart<'_>],
        fed: &[Option<u32>],
        sampling: Option<&[Sampling<'_>]>,
        growth: &[Growth],
        wants: Wants,
    ) -> Result<Ticket, Error> {
        let Buffers { tokens, positions, sequences, outputs } = &mut self.buffers;
        for list in [&mut *tokens, positions, outputs] {
            list.clear();
        }
        sequences.clear();
        let all = parts.iter().all(|p| match p.rows {
            RowsWanted::All => true,
            RowsWanted::First | RowsWanted::Last => p.tokens.len() == 1,
            RowsWanted::None => false,
        });
        let mut span = 0;
        for (index, (part, grown)) in parts.iter().zip(growth).enumerate() {
            let first = tokens.len() as i32;
            let n = part.tokens.len();
            match fed.get(index).copied().flatten() {
                Some(row) => tokens.push(picked_token(row)),
                None => tokens.extend(part.tokens.iter().map(|t| *t as i32)),
            }
            positions.extend((grown.before..grown.after).map(|p| p as i32));
            sequences.extend(std::iter::repeat_n(index as u32, n));
            match part.rows {
                RowsWanted::None => {}
                RowsWanted::First => outputs.push(first),
                RowsWanted::Last => outputs.push(first + n as i32 - 1),
                RowsWanted::All => outputs.extend(first..first + n as i32),
            }
            span = span.max(grown.after);
        }
        let mut tables: Vec<Vec<BlockTable<'_>>> = Vec::with_capacity(self.layout.groups.len());
        for group in 0..self.layout.groups.len() {
            let list = parts.iter().map(|p| {
                let table = self.kv.table(p.sequence, group)?;
                Ok(BlockTable { first: table.first as u32, blocks: table.blocks })
            });
            tables.push(list.collect::<Result<_, Error>>()?);
        }
        let groups: Vec<TableSet<'_>> = tables.iter().map(|t| TableSet { tables: t }).collect();
        let inputs =
            StepInputs { tokens, positions, streams: &[], sequences, outputs, groups: &groups, hidden: &[] };
        self.runner.submit(&inputs, sampling, all, span, wants)
    }

    /// Starts or stops the timing of plan steps.
    pub(crate) fn set_tracing(&mut self, on: bool) {
        self.runner.set_tracing(on);
    }

    /// Step times since the last call, with their plans and the number of the device.
    pub(crate) fn take_trace(&mut self) -> Result<Vec<(usize, Plan, Vec<StepTime>)>, Error> {
        self.runner.take_trace()
    }

    /// Bits of a cached key element and of a value element.
    pub(crate) fn kv_bits(&self) -> (usize, usize) {
        let bits = |t: wootz_graph::KvType| t.bytes(32) / 4;
        (bits(self.layout.k_type), bits(self.layout.v_type))
    }

    pub(crate) fn parts_of_state(&mut self) -> (&mut KvCache, &mut Runner, &CacheLayout) {
        (&mut self.kv, &mut self.runner, &self.layout)
    }
}

/// Keeps what a step computed.
fn keep(kv: &mut KvCache, growth: &[Growth]) -> Result<(), Error> {
    for grown in growth {
        // A sequence may have been closed while the step was under way.
        if kv.committed(grown.sequence).is_ok() {
            kv.commit_to(grown.sequence, grown.after)?;
        }
    }
    Ok(())
}

/// Makes sequences what they were before a step.
fn take_back(kv: &mut KvCache, growth: &[Growth]) {
    for grown in growth {
        // Only tokens that were appended go; that cannot fail for an open sequence.
        let _ = kv.truncate(grown.sequence, grown.before);
    }
}
