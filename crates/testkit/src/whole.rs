use std::sync::Arc;

use wootz_graph::interp::Interpreter;
use wootz_graph::{
    BLOCK_TOKENS, BlockTable, CacheGroup, CacheLayout, GraphKey, KvType, Outputs, StepInputs, TableSet,
    WeightSource,
};

/// All rows that the interpreter makes of a whole text.
///
/// # Panics
/// The model's graph is wrong.
pub fn interpret(
    model: &wootz_arch::Model,
    source: Arc<dyn WeightSource>,
    tokens: &[u32],
    kv: KvType,
) -> Vec<f32> {
    let blocks = tokens.len().div_ceil(BLOCK_TOKENS) as u32;
    let reaches = model.reaches();
    let layout = CacheLayout {
        caches: model.caches().to_vec(),
        groups: reaches.iter().map(|reach| CacheGroup { reach: *reach, blocks }).collect(),
        k_type: kv,
        v_type: kv,
    };
    let n = tokens.len();
    let key = GraphKey {
        tokens: n as u32,
        seqs: 1,
        outputs: Outputs::All,
        kv_span: blocks * BLOCK_TOKENS as u32,
        wants: model.wants(),
    };
    let graph = model.graph(key).expect("a graph of a family's tiny model");
    let list: Vec<u32> = (0..blocks).collect();
    let tables = [BlockTable { first: 0, blocks: &list }];
    let groups = vec![TableSet { tables: &tables }; reaches.len()];
    let ids: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
    let positions: Vec<i32> = (0..n as i32).collect();
    let inputs = StepInputs {
        tokens: &ids,
        positions: &positions,
        streams: &[],
        sequences: &vec![0; n],
        outputs: &[],
        groups: &groups,
        hidden: &[],
    };
    let mut interpreter = Interpreter::new(model.weights().clone(), source, layout);
    interpreter.run(&graph, &inputs).expect("inputs that fit the graph").remove(0).1
}
