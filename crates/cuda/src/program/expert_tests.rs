//! What the fast kernels of a layer of experts share, on a small graph.

use wootz_graph::op::{Activation, ClampedGlu, Gating, Norm, NormKind, Route};
use wootz_graph::{
    Graph, GraphBuilder, GraphKey, KvType, Output, Outputs, Plan, ValueId, Wants, WeightInfo, WeightTable,
    passes,
};
use wootz_quant::WeightType;

use super::forms::Forms;
use crate::{CudaBackend, CudaOptions, Kernels};

const DIM: u64 = 256;
const EXPERTS: u32 = 8;
const USED: u32 = 2;

fn weights(experts: WeightType, router: WeightType) -> WeightTable {
    let mut table = WeightTable::default();
    let mut add = |name: &str, ty, rows, cols, experts: u32| {
        table.push(WeightInfo { name: name.into(), ty, rows: rows * u64::from(experts), cols, experts });
    };
    add("table", WeightType::Q4_K, 512, DIM, 1);
    add("norm", WeightType::F32, 1, DIM, 1);
    add("router", router, u64::from(EXPERTS), DIM, 1);
    add("gate", experts, 2 * DIM, DIM, EXPERTS);
    add("up", experts, 2 * DIM, DIM, EXPERTS);
    add("down", experts, DIM, 2 * DIM, EXPERTS);
    for (name, rows) in [("gate bias", 2 * DIM), ("up bias", 2 * DIM), ("down bias", DIM)] {
        add(name, WeightType::F32, u64::from(EXPERTS), rows, 1);
    }
    add("router bias", WeightType::F32, 1, u64::from(EXPERTS), 1);
    add("head", WeightType::Q6_K, 512, DIM, 1);
    table
}

/// How experts differ between families.
#[derive(Clone, Copy)]
enum Family {
    Gated(Activation),
    /// With biases and the clamped unit.
    GptOss,
}

fn graph(table: &WeightTable, tokens: u32, family: Family) -> Graph {
    let key = GraphKey { tokens, seqs: 1, outputs: Outputs::All, kv_span: 256, wants: Wants::Logits };
    let mut b = GraphBuilder::new(key, table, Vec::new());
    let norm = |b: &mut GraphBuilder<'_>, x: ValueId| {
        let weight = Some(b.weight("norm"));
        b.norm(x, Norm { kind: NormKind::Rms, eps: 1e-5, groups: 1, weight, bias: None }, "norm")
    };
    let embedding = b.weight("table");
    let x = b.embed(embedding, 1.0);
    let h = norm(&mut b, x);
    let router = b.weight("router");
    let bias = |b: &mut GraphBuilder<'_>, name: &str| {
        matches!(family, Family::GptOss).then(|| b.weight(&format!("{name} bias")))
    };
    let router_bias = bias(&mut b, "router");
    let scores = b.linear(h, router, router_bias, "router");
    let (gating, normalize) = match family {
        Family::Gated(_) => (Gating::Softmax, true),
        Family::GptOss => (Gating::SoftmaxChosen, false),
    };
    let (ids, chosen) = b.route(scores, Route { used: USED, gating, normalize, scale: 1.0, bias: None });
    let product = |b: &mut GraphBuilder<'_>, x: ValueId, name: &'static str| {
        let (weight, bias) = (b.weight(name), bias(b, name));
        b.expert_linear(x, ids, weight, bias, name)
    };
    let (gate, up) = (product(&mut b, h, "gate"), product(&mut b, h, "up"));
    let y = match family {
        Family::Gated(activation) => b.glu(gate, up, activation),
        Family::GptOss => b.glu_clamped(gate, up, ClampedGlu { alpha: 1.702, limit: 7.0 }),
    };
    let y = product(&mut b, y, "down");
    let y = b.combine(y, chosen);
    let x = b.add(x, y, "add");
    let h = norm(&mut b, x);
    let head = b.weight("head");
    let logits = b.linear(h, head, None, "head");
    b.output(Output::Logits, logits);
    b.finish().unwrap()
}

fn plan(table: &WeightTable, tokens: u32, kernels: Kernels) -> Plan {
    plan_of(Family::Gated(Activation::Silu), table, tokens, kernels)
}

fn plan_of(family: Family, table: &WeightTable, tokens: u32, kernels: Kernels) -> Plan {
    let backend = CudaBackend::new(CudaOptions { kernels });
    passes::compile(graph(table, tokens, family), table, &backend).unwrap()
}

fn kernels(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(|s| s.kernel).collect()
}

#[test]
fn the_experts_of_a_token_are_chosen_and_computed_in_two_steps() {
    let table = weights(WeightType::Q4_K, WeightType::F32);
    let plan = plan(&table, 1, Kernels::Fast);
    assert_eq!(kernels(&plan), ["embed", "router", "experts", "matvec"]);
    // Norm, scores and choice; gate, up, unit, down and the sum.
    assert_eq!(plan.steps.iter().map(|s| s.nodes.len()).collect::<Vec<_>>(), [1, 3, 5, 3]);
    // Gated values of the chosen experts, no more than as f32.
    assert_eq!(plan.steps[2].scratch.unwrap().bytes, 4 * (USED as usize) * 2 * DIM as usize);
    // The sum over experts is left in two parts, which the next norm adds.
    let forms = Forms::new(&plan, &table, true, KvType::F16);
    assert!(forms.tail(plan.steps[2].outs[0], 0).is_some());
}

#[test]
fn many_tokens_are_sorted_by_expert() {
    let table = weights(WeightType::Q4_K, WeightType::F32);
    assert_eq!(kernels(&plan(&table, 8, Kernels::Fast)), ["embed", "router", "experts", "products"]);
    let plan = plan(&table, 64, Kernels::Fast);
    assert_eq!(kernels(&plan), ["embed", "norm", "linear-f32", "route", "experts", "products"]);
    let forms = Forms::new(&plan, &table, true, KvType::F16);
    assert!(forms.tail(plan.steps[4].outs[0], 0).is_none(), "many rows are whole");
    // At least the image, gated values and results of all experts.
    let slots = 64 * USED as usize;
    assert!(plan.steps[4].scratch.unwrap().bytes > slots * DIM as usize * (2 * 2 + 2 * 4 + 4));
}

#[test]
fn experts_with_biases_and_the_clamped_unit_take_the_same_kernels() {
    let table = weights(WeightType::MXFP4, WeightType::F32);
    for tokens in [1, 8, 64] {
        let [biased, plain] = [Family::GptOss, Family::Gated(Activation::Silu)]
            .map(|family| plan_of(family, &table, tokens, Kernels::Fast));
        assert_eq!(kernels(&biased), kernels(&plain));
        assert!(kernels(&biased).contains(&"experts"));
        assert_eq!(
            biased.steps.iter().map(|s| s.nodes.len()).collect::<Vec<_>>(),
            plain.steps.iter().map(|s| s.nodes.len()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn units_that_fast_kernels_of_experts_lack_take_plain_ones() {
    let table = weights(WeightType::Q4_K, WeightType::F32);
    for (activation, fast) in
        [(Activation::Gelu, true), (Activation::GeluErf, false), (Activation::Relu, false)]
    {
        let plan = plan_of(Family::Gated(activation), &table, 1, Kernels::Fast);
        assert_eq!(kernels(&plan).contains(&"experts"), fast, "{activation:?}");
    }
}

#[test]
fn types_without_fast_kernels_take_plain_ones() {
    let table = weights(WeightType::Q5_0, WeightType::Q8_0);
    for tokens in [1, 64] {
        let plan = plan(&table, tokens, Kernels::Fast);
        assert_eq!(kernels(&plan).iter().filter(|k| **k == "expert-linear").count(), 3);
        assert!(!kernels(&plan).contains(&"router"), "its weights are not f32");
    }
    let table = weights(WeightType::Q4_K, WeightType::F32);
    let plan = plan(&table, 1, Kernels::Simple);
    assert!(plan.steps.iter().all(|s| s.nodes.len() == 1 || s.kernel == "add+norm"));
}
