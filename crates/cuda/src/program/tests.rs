//! What the fast kernels of a layer share, on a small graph.

use wootz_graph::op::{Activation, Attention, Norm, NormKind, Op, Rope, RopeStyle};
use wootz_graph::{
    CacheGroup, CacheId, CacheLayout, CacheSpec, Graph, GraphBuilder, GraphKey, KvType, Output, Outputs,
    Plan, Reach, ValueId, Wants, WeightInfo, WeightTable, passes,
};
use wootz_quant::WeightType;

use super::few::Joint;
use super::forms::{Forms, has_fast_attend};
use crate::{CudaBackend, CudaOptions, Kernels};

const DIM: u64 = 256;

fn weights(down: WeightType) -> WeightTable {
    weights_of(WeightType::Q4_K, down)
}

fn weights_of(o: WeightType, down: WeightType) -> WeightTable {
    let mut table = WeightTable::default();
    let mut add = |name: &str, ty, rows, cols| {
        table.push(WeightInfo { name: name.into(), ty, rows, cols, experts: 1 });
    };
    add("table", WeightType::Q4_K, 512, DIM);
    add("norm", WeightType::F32, 1, DIM);
    for name in ["q", "k", "v"] {
        add(name, WeightType::Q4_K, DIM, DIM);
    }
    add("o", o, DIM, DIM);
    add("gate", WeightType::Q4_K, 2 * DIM, DIM);
    add("up", WeightType::Q4_K, 2 * DIM, DIM);
    add("down", down, DIM, 2 * DIM);
    add("head", WeightType::Q6_K, 512, DIM);
    table
}

fn graph(table: &WeightTable, tokens: u32, seqs: u32) -> Graph {
    let key = GraphKey { tokens, seqs, outputs: Outputs::All, kv_span: 256, wants: Wants::Logits };
    let spec = CacheSpec { layer: 0, group: 0, kv_heads: 4, k_dim: 64, v_dim: 64, state: 0 };
    let mut b = GraphBuilder::new(key, table, vec![spec]);
    let norm = |b: &mut GraphBuilder<'_>, x: ValueId| {
        let weight = Some(b.weight("norm"));
        b.norm(x, Norm { kind: NormKind::Rms, eps: 1e-5, groups: 1, weight, bias: None }, "norm")
    };
    let linear = |b: &mut GraphBuilder<'_>, x: ValueId, name: &'static str| {
        let weight = b.weight(name);
        b.linear(x, weight, None, name)
    };
    let rope = Rope {
        heads: 4,
        head_dim: 64,
        dims: 64,
        style: RopeStyle::Halves,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        factors: None,
        yarn: None,
        magnitude: 1.0,
        sections: None,
    };
    let embedding = b.weight("table");
    let x = b.embed(embedding, 1.0);
    let h = norm(&mut b, x);
    let (q, k, v) = (linear(&mut b, h, "q"), linear(&mut b, h, "k"), linear(&mut b, h, "v"));
    let (q, k) = (b.rope(q, rope, "rope_q"), b.rope(k, rope, "rope_k"));
    b.store_kv(CacheId(0), k, v);
    let attention = Attention {
        cache: CacheId(0),
        heads: 4,
        scale: 0.125,
        softcap: None,
        window: None,
        causal: true,
        sinks: None,
    };
    let y = b.attention(q, attention);
    let y = linear(&mut b, y, "o");
    let x = b.add(x, y, "add");
    let h = norm(&mut b, x);
    let (gate, up) = (linear(&mut b, h, "gate"), linear(&mut b, h, "up"));
    let y = b.glu(gate, up, Activation::Silu);
    let y = linear(&mut b, y, "down");
    let x = b.add(x, y, "add");
    let h = norm(&mut b, x);
    let logits = linear(&mut b, h, "head");
    b.output(Output::Logits, logits);
    b.finish().unwrap()
}

fn plan(table: &WeightTable, tokens: u32, kernels: Kernels) -> Plan {
    plan_of_sequences(table, tokens, 1, kernels)
}

fn plan_of_sequences(table: &WeightTable, tokens: u32, seqs: u32, kernels: Kernels) -> Plan {
    let backend = CudaBackend::new(CudaOptions { kernels });
    passes::compile(graph(table, tokens, seqs), table, &backend).unwrap()
}

fn kernels(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(|s| s.kernel).collect()
}

/// The output of the product with this label, or of what follows it in the same step.
fn made_by(plan: &Plan, label: &str) -> ValueId {
    let node = plan.graph.nodes.iter().find(|n| n.label == label).unwrap();
    node.outs[0]
}

#[test]
fn a_token_takes_five_kernels_a_layer() {
    let table = weights(WeightType::Q4_K);
    let plan = plan(&table, 1, Kernels::Fast);
    let expected = ["embed", "matvec", "attend", "matvec", "matvec", "matvec", "matvec"];
    assert_eq!(kernels(&plan), expected);
    let labels: Vec<usize> = plan.steps.iter().map(|s| s.nodes.len()).collect();
    // q, k and v with their norm; two ropes, the cache and attention; sum, norm, gate, up and unit; …
    assert_eq!(labels, [1, 4, 4, 1, 5, 1, 3]);
}

#[test]
fn many_tokens_take_products_and_plain_kernels_before_attention() {
    let table = weights(WeightType::Q4_K);
    let plan = plan(&table, 64, Kernels::Fast);
    let expected = [
        "embed",
        "products",
        "rope",
        "rope",
        "store-kv",
        "attention",
        "products",
        "products",
        "products",
        "products",
    ];
    assert_eq!(kernels(&plan), expected);
}

#[test]
fn tokens_of_as_many_sequences_have_attention_in_one_kernel() {
    let table = weights(WeightType::Q4_K);
    let plan = plan_of_sequences(&table, 8, 8, Kernels::Fast);
    let expected = ["embed", "products", "attend", "products", "products", "products", "products"];
    assert_eq!(kernels(&plan), expected);
    assert!(plan.steps[2].scratch.is_some(), "room for the case that two tokens are of one sequence");
}

#[test]
fn plain_kernels_take_one_node_each_but_a_sum_with_its_norm() {
    let table = weights(WeightType::Q4_K);
    let plan = plan(&table, 1, Kernels::Simple);
    assert!(plan.steps.iter().all(|s| s.nodes.len() == 1 || s.kernel == "add+norm"));
}

fn layout(plan: &Plan, ty: KvType) -> CacheLayout {
    CacheLayout {
        caches: plan.graph.caches.clone(),
        groups: vec![CacheGroup { reach: Reach::Full, blocks: 8 }],
        k_type: ty,
        v_type: ty,
    }
}

fn forms(table: &WeightTable, ty: KvType, tokens: u32) -> (Plan, Forms) {
    let plan = plan_of_sequences(table, tokens, tokens, Kernels::Fast);
    let layout = layout(&plan, ty);
    let forms = Forms::new(&plan, table, has_fast_attend(&plan, &layout), ty);
    (plan, forms)
}

#[test]
fn values_between_kernels_of_a_token_keep_their_short_forms() {
    let table = weights(WeightType::Q4_K);
    let (plan, forms) = forms(&table, KvType::F16, 1);
    let tails: Vec<u64> =
        ["q", "k", "v", "o", "down"].map(|n| forms.tail(made_by(&plan, n), 0).unwrap()).to_vec();
    // Those of one step lie side by side, those of the next in the next buffer.
    let row = 4 * DIM;
    let buffer = forms.tail_bytes as u64;
    assert_eq!(tails, [0, row, 2 * row, buffer, 2 * buffer]);
    assert_eq!(buffer, 3 * row);
    assert!(forms.tail(made_by(&plan, "head"), 0).is_none(), "results are whole");
    assert!(forms.is_acts(made_by(&plan, "glu")));
}

#[test]
fn readers_that_cannot_add_or_take_short_forms_get_f32() {
    let table = weights(WeightType::F16);
    let (plan, forms) = forms(&table, KvType::F32, 1);
    assert!(!forms.is_acts(made_by(&plan, "glu")), "float weights take float activations");
    for name in ["q", "k", "v"] {
        assert!(forms.tail(made_by(&plan, name), 0).is_none(), "plain attention reads {name} as it is");
    }
    assert!(forms.tail(made_by(&plan, "o"), 0).is_some());
}

#[test]
fn products_of_several_rows_are_left_to_readers_that_add() {
    let table = weights(WeightType::Q4_K);
    let (plan, forms) = forms(&table, KvType::F16, 8);
    for name in ["q", "k", "v"] {
        assert!(forms.takes_parts(made_by(&plan, name), true), "attention adds the parts of {name}");
        assert!(!forms.takes_parts(made_by(&plan, name), false), "other kernels come between");
    }
    for name in ["o", "down"] {
        assert!(forms.takes_parts(made_by(&plan, name), false), "the next products add the parts of {name}");
    }
    assert!(!forms.takes_parts(made_by(&plan, "head"), true), "results are whole");
    assert!(!forms.takes_parts(made_by(&plan, "glu"), true), "a gate needs whole sums");
}

#[test]
fn a_product_between_attention_and_a_norm_adds_to_the_row() {
    let joint = |ty: KvType, tokens: u32, apart: bool, first: usize| {
        let table = weights(WeightType::Q4_K);
        let (plan, forms) = forms(&table, ty, tokens);
        let layout = layout(&plan, ty);
        Joint::at(&plan.graph, &layout, &forms, apart, &plan.steps[first..]).is_some()
    };
    // The steps: embed, products, attend, products, …
    assert!(joint(KvType::F16, 8, true, 2));
    assert!(joint(KvType::BF16, 8, true, 2), "int8 has a scale for each 32 columns");
    assert!(!joint(KvType::F16, 8, true, 1), "attention comes first");
    assert!(!joint(KvType::F16, 8, true, 4), "of gated products");
    assert!(!joint(KvType::F16, 8, false, 2), "other kernels come between");
    assert!(!joint(KvType::F32, 8, true, 2), "attention has no fast kernel");
    assert!(!joint(KvType::F16, 1, true, 2), "one row has its own kernels");
}

#[test]
fn attention_of_several_rows_makes_the_image_that_products_read() {
    let image = |o: WeightType, ty: KvType, tokens: u32, apart: bool| {
        let table = weights_of(o, WeightType::Q4_K);
        let (plan, forms) = forms(&table, ty, tokens);
        let attention = plan.graph.nodes.iter().find(|n| matches!(n.op, Op::Attention(_))).unwrap();
        forms.image(attention.outs[0], apart)
    };
    assert_eq!(image(WeightType::Q4_K, KvType::F16, 8, true), Some(false));
    assert_eq!(image(WeightType::BF16, KvType::BF16, 8, true), Some(true));
    assert_eq!(
        image(WeightType::Q4_K, KvType::BF16, 8, true),
        None,
        "f16 may be too small for values of bf16"
    );
    assert_eq!(image(WeightType::Q4_K, KvType::F16, 8, false), None, "other kernels come between");
    assert_eq!(image(WeightType::Q4_K, KvType::F16, 2, true), None, "the image is larger than the result");
}
