//! Rows of logits from which a device picks tokens, against [`sampling::pick`].

use std::sync::Arc;

use wootz_graph::{
    Backend, BlockTable, CacheLayout, Device, Graph, GraphBuilder, GraphKey, KvType, LoadRequest, LogitEdit,
    Output, Outputs, Picked, Sampling, StepInputs, TableSet, Wants, WeightTable, passes, picked_token,
    sampling,
};

use crate::memory::MemoryWeights;
use crate::rng::Rng;

/// Rows of logits, and for each how tokens are picked from it, several times.
pub struct PickCase {
    /// What it tries.
    pub name: String,
    vocab: usize,
    rows: Vec<Vec<f32>>,
    /// Of each step, for each row.
    steps: Vec<Vec<Request>>,
}

/// How a token is picked, and the changes of logits.
#[derive(Clone, Debug)]
struct Request(Sampling<'static>, Vec<LogitEdit>);

impl Request {
    fn sampling(&self) -> Sampling<'_> {
        Sampling { edits: &self.1, ..self.0 }
    }
}

/// All cases: up to 256 candidates, vocabularies up to 50,021.
pub fn all() -> Vec<PickCase> {
    let mut cases: Vec<PickCase> = [2, 300, 5000, 50_021].into_iter().flat_map(random).collect();
    cases.extend(odd());
    cases
}

impl PickCase {
    /// Candidates that a token is picked from, at most.
    pub fn candidates(&self) -> u32 {
        self.steps.iter().flatten().map(|request| request.0.top_k).max().unwrap_or(0)
    }
}

/// Normally distributed logits, some of them equal and some negative infinity.
fn row(rng: &mut Rng, vocab: usize, spread: f32) -> Vec<f32> {
    let mut row: Vec<f32> = (0..vocab).map(|_| rng.normal() * spread).collect();
    for _ in 0..vocab / 8 {
        let (from, to, gone) = (rng.below(vocab), rng.below(vocab), rng.below(vocab));
        row[to] = row[from];
        row[gone] = f32::NEG_INFINITY;
    }
    row[0] = 0.5 * spread;
    row
}

fn request(rng: &mut Rng, vocab: usize, most: u32) -> Request {
    let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut sampling = Sampling { uniform, ..Sampling::GREEDY };
    let choose = |rng: &mut Rng, list: &[f32]| list[rng.below(list.len())];
    if most > 1 {
        sampling.top_k = most.min(1 + rng.below(most as usize) as u32);
        sampling.top_p = choose(rng, &[1.0, 0.95, 0.5, 0.0, 0.999_99]);
        sampling.min_p_below = choose(rng, &[f32::NEG_INFINITY, -3.0, 0.0, -12.0]);
        sampling.temperature = choose(rng, &[1.0, 0.8, 0.3, 2.5, 1e-3]);
    }
    let mut edits = Vec::new();
    if rng.below(2) == 0 {
        sampling.repeat_penalty = choose(rng, &[1.0, 1.3, 0.7]);
        sampling.frequency_penalty = choose(rng, &[0.0, 0.37, -0.2]);
        sampling.presence_penalty = choose(rng, &[0.0, 0.61]);
        let mut tokens: Vec<u32> = (0..20).map(|_| rng.below(vocab) as u32).collect();
        tokens.sort_unstable();
        tokens.dedup();
        edits.extend(tokens.into_iter().map(|token| LogitEdit {
            token,
            bias: choose(rng, &[0.0, 0.0, 1.5, -2.0, f32::NEG_INFINITY, f32::MAX]),
            seen: rng.below(5) as u32,
        }));
    }
    Request(sampling, edits)
}

/// Random rows; all requests greedy, with few candidates, with many.
fn random(vocab: usize) -> impl Iterator<Item = PickCase> {
    [1, 40, 256].into_iter().map(move |most| {
        let mut rng = Rng::new(vocab as u64 + u64::from(most));
        let rows = [0.1, 1.0, 4.0, 1e30].map(|spread| row(&mut rng, vocab, spread)).to_vec();
        let steps = (0..4).map(|_| rows.iter().map(|_| request(&mut rng, vocab, most)).collect()).collect();
        PickCase { name: format!("pick, {vocab} tokens, {most} candidates"), vocab, rows, steps }
    })
}

/// Rows without a token to pick, and such that are hard to order; by the number of candidates.
fn odd() -> impl Iterator<Item = PickCase> {
    let vocab = 2000;
    let mut rng = Rng::new(9);
    let with = |row: &[f32], changes: &[(usize, f32)]| {
        let mut row = row.to_vec();
        changes.iter().for_each(|(at, x)| row[*at] = *x);
        row
    };
    let plain = row(&mut rng, vocab, 1.0);
    let nothing = vec![f32::NEG_INFINITY; vocab];
    let rows = vec![
        with(&plain, &[(1999, f32::NAN), (1200, f32::NAN)]),
        with(&plain, &[(1, f32::INFINITY)]),
        nothing.clone(),
        with(&nothing, &[(1777, -3.0), (8, -3.0)]),
        with(&nothing, &[(1777, f32::MIN), (8, f32::MAX)]),
        vec![-2.5; vocab],
        (0..vocab).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect(),
    ];
    [1, 40, 200].into_iter().map(move |top_k| {
        let request = |uniform| Request(Sampling { top_k, uniform, ..Sampling::GREEDY }, Vec::new());
        let step = (0..rows.len()).map(|i| request(i as f64 / 7.0)).collect();
        let name = format!("pick, odd rows, {top_k} candidates");
        PickCase { name, vocab, rows: rows.clone(), steps: vec![step] }
    })
}

/// A model whose logits are rows of a table.
struct Table {
    weights: MemoryWeights,
    table: Arc<WeightTable>,
}

impl Table {
    fn new(rows: &[Vec<f32>], vocab: usize) -> Table {
        let mut weights = MemoryWeights::default();
        weights.add_bits("logits", vocab, &rows.concat());
        let table = weights.table();
        Table { weights, table }
    }

    fn graph(&self, rows: usize) -> Graph {
        let key = GraphKey {
            tokens: rows as u32,
            seqs: rows as u32,
            outputs: Outputs::All,
            kv_span: 32,
            wants: Wants::Logits,
        };
        let mut builder = GraphBuilder::new(key, &self.table, Vec::new());
        let table = self.table.find("logits").expect("the only weight");
        let logits = builder.embed(table, 1.0);
        builder.output(Output::Logits, logits);
        builder.finish().expect("a graph of one node")
    }

    /// Runs steps of one token of each of several sequences and returns what is picked. A step is submitted before
    /// the one before is waited for. `None` where the device cannot pick so.
    fn run(
        &self,
        backend: &dyn Backend,
        device: &dyn Device,
        steps: &[(Vec<i32>, Vec<Sampling<'_>>)],
    ) -> Result<Option<Vec<Vec<Picked>>>, String> {
        let rows = steps[0].0.len();
        let layout =
            CacheLayout { caches: Vec::new(), groups: Vec::new(), k_type: KvType::F32, v_type: KvType::F32 };
        let graph = self.graph(rows);
        let request = LoadRequest {
            weights: self.table.clone(),
            source: Arc::new(self.weights.clone()),
            caches: layout,
            graph: &graph,
        };
        let mut executor = device.load(request, &mut |_| ()).map_err(|e| e.to_string())?;
        let all = steps.iter().flat_map(|(_, sampling)| sampling);
        if all.into_iter().any(|s| !executor.can_pick(s)) {
            return Ok(None);
        }
        let plan = passes::compile(graph.clone(), &self.table, backend).map_err(|e| e.to_string())?;
        let program = executor.compile(plan).map_err(|e| e.to_string())?;
        let sequences: Vec<u32> = (0..rows as u32).collect();
        let tables = vec![BlockTable { first: 0, blocks: &[] }; rows];
        let (mut results, mut under_way) = (Vec::new(), None);
        for (at, (tokens, sampling)) in steps.iter().enumerate() {
            let inputs = StepInputs {
                tokens,
                positions: &vec![at as i32; rows],
                streams: &[],
                sequences: &sequences,
                outputs: &[],
                groups: &[TableSet { tables: &tables }][..0],
                hidden: &[],
            };
            let ticket = executor.submit_picking(program, &inputs, sampling).map_err(|e| e.to_string())?;
            if let Some(before) = under_way.replace(ticket) {
                results.push(executor.wait_picked(before).map_err(|e| e.to_string())?);
            }
        }
        if let Some(last) = under_way {
            results.push(executor.wait_picked(last).map_err(|e| e.to_string())?);
        }
        Ok(Some(results))
    }
}

/// Compares what a device picks with [`sampling::pick`]; `false` where it cannot pick so.
///
/// # Errors
/// A message: another token, or the device fails.
pub fn check_picks(backend: &dyn Backend, device: &dyn Device, case: &PickCase) -> Result<bool, String> {
    let table = Table::new(&case.rows, case.vocab);
    let tokens: Vec<i32> = (0..case.rows.len() as i32).collect();
    let steps: Vec<(Vec<i32>, Vec<Sampling<'_>>)> =
        case.steps.iter().map(|r| (tokens.clone(), r.iter().map(Request::sampling).collect())).collect();
    let found = table.run(backend, device, &steps).map_err(|e| format!("{}: {e}", case.name))?;
    let Some(found) = found else { return Ok(false) };
    for ((step, (_, requests)), found) in steps.iter().enumerate().zip(&found) {
        for (row, (request, found)) in requests.iter().zip(found).enumerate() {
            let expected = sampling::pick(&case.rows[row], request);
            // A logit that is no number differs from itself.
            if format!("{found:?}") != format!("{expected:?}") {
                return Err(format!(
                    "{}, step {step}, row {row}: {found:?}, expected {expected:?}: {request:?}",
                    case.name
                ));
            }
        }
    }
    Ok(true)
}

/// Compares steps whose tokens are those that the step before picked; `false` where the device cannot pick so.
///
/// # Errors
/// A message: another token, or the device fails.
pub fn check_fed_picks(backend: &dyn Backend, device: &dyn Device) -> Result<bool, String> {
    const VOCAB: usize = 300;
    let mut rng = Rng::new(4);
    let rows: Vec<Vec<f32>> = (0..VOCAB).map(|_| row(&mut rng, VOCAB, 1.0)).collect();
    let requests: Vec<Request> = (0..18).map(|_| request(&mut rng, VOCAB, 40)).collect();
    // Rows change places, so that a token from the wrong row shows.
    let mut steps = vec![(vec![7, 100, 299], Vec::new())];
    steps.resize(requests.len() / 3, ([1, 2, 0].map(picked_token).to_vec(), Vec::new()));
    for (step, requests) in steps.iter_mut().zip(requests.chunks(3)) {
        step.1 = requests.iter().map(Request::sampling).collect();
    }
    let Some(found) = Table::new(&rows, VOCAB).run(backend, device, &steps)? else { return Ok(false) };
    let mut tokens = vec![7, 100, 299];
    for (step, ((_, requests), found)) in steps.iter().zip(&found).enumerate() {
        let expected: Vec<Picked> = tokens
            .iter()
            .zip(requests)
            .map(|(token, request)| sampling::pick(&rows[*token], request))
            .collect();
        if *found != expected {
            return Err(format!("step {step}, fed with {tokens:?}: {found:?}, expected {expected:?}"));
        }
        let token = |row: usize| match expected[row] {
            Picked::Token(token) => token as usize,
            _ => 0,
        };
        tokens = [1, 2, 0].map(token).to_vec();
    }
    Ok(true)
}
