//! Tiny models on any backend: a prompt in pieces, then greedy tokens one by one.

use std::sync::Arc;

use wootz_arch::Architecture;
use wootz_graph::interp::Interpreter;
use wootz_graph::{
    BLOCK_TOKENS, Backend, BlockTable, CacheGroup, CacheLayout, Executor, Graph, GraphKey, KvType,
    LoadRequest, Outputs, RunError, StepInputs, TableSet, Wants, WeightId, WeightSource, passes,
};
use wootz_testkit::tiny;

/// Cached positions of a test's sequence.
const SPAN: usize = 128;

/// A tiny model of a family.
pub(crate) struct TinyModel {
    arch: wootz_arch::Model,
    source: Arc<Source>,
}

/// Tensors of a file in memory, by weight.
struct Source {
    file: wootz_gguf::Model,
    tensors: Vec<usize>,
}

impl WeightSource for Source {
    fn read(&self, id: WeightId, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let tensor = &self.file.tensors()[self.tensors[id.0 as usize]];
        self.file.read_tensor_at(tensor, offset as usize, buf).map_err(std::io::Error::other)
    }

    fn mapped(&self, id: WeightId) -> Option<&[u8]> {
        self.file.data(&self.file.tensors()[self.tensors[id.0 as usize]]).ok()
    }
}

impl TinyModel {
    pub(crate) fn new(family: &dyn Architecture, types: tiny::Types) -> TinyModel {
        TinyModel::from_file(wootz_gguf::Model::from_bytes(tiny::build(family, types, 7)).unwrap())
    }

    pub(crate) fn from_file(file: wootz_gguf::Model) -> TinyModel {
        let find = |name: &str| {
            let tensor = file.tensors().iter().find(|t| &*t.name == name)?;
            Some((tensor.ty, tensor.rows() as u64, tensor.cols() as u64))
        };
        let arch = wootz_arch::Model::new(file.meta(), find).unwrap();
        let place = |name: &str| file.tensors().iter().position(|t| &*t.name == name).unwrap();
        let tensors = arch.weights().iter().map(|(_, info)| place(&info.name)).collect();
        TinyModel { arch, source: Arc::new(Source { file, tensors }) }
    }

    pub(crate) fn has_experts(&self) -> bool {
        self.arch.hparams().experts.is_some()
    }

    fn layout(&self, kv: KvType) -> CacheLayout {
        let blocks = (SPAN / BLOCK_TOKENS) as u32;
        CacheLayout {
            caches: self.arch.caches().to_vec(),
            groups: self.arch.reaches().iter().map(|reach| CacheGroup { reach: *reach, blocks }).collect(),
            k_type: kv,
            v_type: kv,
        }
    }

    pub(crate) fn graph(&self, tokens: usize) -> Graph {
        let key = GraphKey {
            tokens: tokens.next_power_of_two() as u32,
            seqs: 1,
            outputs: Outputs::Some(1),
            kv_span: SPAN as u32,
            wants: Wants::Logits,
        };
        self.arch.graph(key).unwrap()
    }

    /// Cache groups.
    pub(crate) fn groups(&self) -> usize {
        self.arch.reaches().len()
    }

    pub(crate) fn weights(&self) -> &wootz_graph::WeightTable {
        self.arch.weights()
    }

    pub(crate) fn load(&self, backend: &dyn Backend, kv: KvType) -> Result<Box<dyn Executor>, RunError> {
        let request = LoadRequest {
            weights: self.arch.weights().clone(),
            source: self.source.clone(),
            caches: self.layout(kv),
            graph: &self.graph(1),
        };
        backend.open(0)?.load(request, &mut |_| ())
    }

    /// Logits of the last token of each step, and the greedy tokens.
    pub(crate) fn generate(
        &self,
        prompt: &[i32],
        new: usize,
        mut step: impl FnMut(&Graph, &StepInputs<'_>) -> Result<Vec<f32>, RunError>,
    ) -> Result<(Vec<f32>, Vec<i32>), RunError> {
        // Blocks in no order, so that a table that is not used shows.
        let blocks: Vec<u32> = (0..(SPAN / BLOCK_TOKENS) as u32).rev().collect();
        let tables = [BlockTable { first: 0, blocks: &blocks }];
        let groups = vec![TableSet { tables: &tables }; self.arch.reaches().len()];
        let mut logits = Vec::new();
        let mut made = Vec::new();
        let mut position = 0;
        let pieces: Vec<Vec<i32>> = prompt.chunks(19).map(<[i32]>::to_vec).collect();
        let mut pieces = pieces.into_iter();
        while made.len() < new {
            let tokens = pieces.next().unwrap_or_else(|| vec![*made.last().unwrap()]);
            let n = tokens.len();
            let positions: Vec<i32> = (position..position + n as i32).collect();
            let inputs = StepInputs {
                tokens: &tokens,
                positions: &positions,
                streams: &[],
                sequences: &vec![0; n],
                outputs: &[n as i32 - 1],
                groups: &groups,
                hidden: &[],
            };
            let row = step(&self.graph(n), &inputs)?;
            position += n as i32;
            if position as usize >= prompt.len() {
                let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                made.push(best as i32);
            }
            logits.extend(row);
        }
        Ok((logits, made))
    }

    /// As [`generate`](Self::generate), on a backend's first device.
    pub(crate) fn run(
        &self,
        backend: &dyn Backend,
        kv: KvType,
        prompt: &[i32],
        new: usize,
    ) -> Result<(Vec<f32>, Vec<i32>), RunError> {
        let mut executor = self.load(backend, kv)?;
        self.generate(prompt, new, |graph, inputs| {
            let plan = passes::compile(graph.clone(), self.weights(), backend)
                .map_err(|e| RunError::Plan(e.to_string()))?;
            let program = executor.compile(plan)?;
            let ticket = executor.submit(program, inputs)?;
            Ok(executor.wait(ticket)?.data.to_vec())
        })
    }

    /// What the interpreter makes of the same steps, whatever tokens it would choose itself.
    pub(crate) fn reference(&self, kv: KvType, prompt: &[i32], tokens: &[i32]) -> Vec<f32> {
        let mut interpreter =
            Interpreter::new(self.arch.weights().clone(), self.source.clone(), self.layout(kv));
        let mut forced = tokens.iter();
        let (logits, _) = self
            .generate(prompt, tokens.len(), |graph, inputs| {
                let row = interpreter.run(graph, inputs)?.remove(0).1;
                let last = *inputs.positions.last().unwrap() as usize + 1;
                if last < prompt.len() {
                    return Ok(row);
                }
                // The largest logit, so that the next step takes this token.
                let mut row = row;
                if let Some(token) = forced.next() {
                    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert!(top - row[*token as usize] < 1e-2, "the interpreter would never choose {token}");
                    row[*token as usize] = row[*token as usize].max(top);
                }
                Ok(row)
            })
            .unwrap();
        logits
    }
}
