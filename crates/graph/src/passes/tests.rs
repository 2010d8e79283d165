use super::*;
use crate::GraphBuilder;
use crate::backend::{Device, DeviceInfo, Selection};
use crate::cache::{CacheId, CacheSpec};
use crate::error::RunError;
use crate::graph::{NodeId, Output, Type};
use crate::key::{GraphKey, Outputs, Wants};
use crate::op::{Activation, Attention, Norm, NormKind, Op};
use crate::plan::After;
use crate::weights::WeightInfo;
use std::sync::Arc;
use wootz_quant::WeightType;

/// Runs every node alone, but for a gate, an up projection and their unit.
struct Fake {
    fuse: bool,
    bad: bool,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn select(&self, graph: &Graph, _: &WeightTable, at: NodeId) -> Option<Selection> {
        let node = graph.node(at);
        if self.bad && node.label == "embed" {
            // The embedding together with the output projection, which depends on all between.
            let last = NodeId(graph.nodes.len() as u32 - 1);
            return Some(Selection { covers: vec![at, last], ..Selection::single("bad", at) });
        }
        if self.fuse && node.label == "gate" {
            return Some(Selection {
                kernel: "gate+up+glu",
                covers: vec![at, NodeId(at.0 + 1), NodeId(at.0 + 2)],
                scratch: 1000,
                in_place: None,
            });
        }
        match node.op {
            Op::Softcap { .. } => None,
            Op::Add => {
                let in_place = Some((node.ins[0], node.outs[0]));
                Some(Selection { in_place, ..Selection::single("add", at) })
            }
            _ => Some(Selection::single("any", at)),
        }
    }
    fn devices(&self) -> Result<Vec<DeviceInfo>, RunError> {
        Ok(Vec::new())
    }
    fn open(&self, _: usize) -> Result<Arc<dyn Device>, RunError> {
        Err(RunError::Plan("no devices".into()))
    }
}

fn weights() -> WeightTable {
    let mut table = WeightTable::default();
    let mut push = |name: &str, rows, cols| {
        table.push(WeightInfo { name: name.into(), ty: WeightType::F32, rows, cols, experts: 1 });
    };
    push("embd", 100, 64);
    for name in ["q", "k", "v", "o"] {
        push(name, 64, 64);
    }
    push("gate", 128, 64);
    push("up", 128, 64);
    push("down", 64, 128);
    push("norm", 1, 64);
    table
}

fn graph(weights: &WeightTable, softcap: bool) -> Graph {
    let key = GraphKey { tokens: 8, seqs: 1, outputs: Outputs::Some(1), kv_span: 64, wants: Wants::Logits };
    let cache = CacheSpec { layer: 0, group: 0, kv_heads: 2, k_dim: 32, v_dim: 32, state: 0 };
    let mut b = GraphBuilder::new(key, weights, vec![cache]);
    let norm = |b: &mut GraphBuilder<'_>, x| {
        let weight = Some(b.weight("norm"));
        b.norm(x, Norm { kind: NormKind::Rms, eps: 1e-5, groups: 1, weight, bias: None }, "norm")
    };
    let table = b.weight("embd");
    let x = b.embed(table, 1.0);
    b.layer(Some(0));
    let h = norm(&mut b, x);
    let project = |b: &mut GraphBuilder<'_>, x, name: &'static str| {
        let w = b.weight(name);
        b.linear(x, w, None, name)
    };
    let (q, k, v) = (project(&mut b, h, "q"), project(&mut b, h, "k"), project(&mut b, h, "v"));
    b.store_kv(CacheId(0), k, v);
    let a = Attention {
        cache: CacheId(0),
        heads: 2,
        scale: 0.1,
        softcap: None,
        window: None,
        causal: true,
        sinks: None,
    };
    let y = b.attention(q, a);
    let (y, x) = (b.gather_outputs(y), b.gather_outputs(x));
    let y = project(&mut b, y, "o");
    let x = b.add(x, y, "residual");
    let h = norm(&mut b, x);
    let (g, u) = (project(&mut b, h, "gate"), project(&mut b, h, "up"));
    let y = b.glu(g, u, Activation::Silu);
    let y = project(&mut b, y, "down");
    let x = b.add(x, y, "residual");
    // Dead: reaches no output.
    b.scale(x, 3.0);
    b.layer(None);
    let mut logits = b.linear(x, table, None, "head");
    if softcap {
        logits = b.softcap(logits, 30.0);
    }
    b.output(Output::Logits, logits);
    b.finish().unwrap()
}

#[test]
fn dead_nodes_leave_the_graph() {
    let graph = graph(&weights(), false);
    assert!(graph.nodes.iter().all(|n| n.label != "scale"));
    assert!(graph.nodes.iter().any(|n| n.label == "store_kv"));
}

#[test]
fn every_value_between_steps_has_memory_and_no_two_live_values_share_it() {
    let weights = weights();
    for fuse in [false, true] {
        let plan = compile(graph(&weights, false), &weights, &Fake { fuse, bad: false }).unwrap();
        // Replays the plan: a read must find the value that was written last to its region.
        let mut holder: Vec<(crate::Region, crate::ValueId)> = Vec::new();
        let mut write = |value: crate::ValueId| {
            let region = plan.region(value).unwrap();
            holder.retain(|(r, _)| !r.overlaps(&region));
            holder.push((region, value));
            holder.clone()
        };
        let mut now = Vec::new();
        for node in plan.graph.nodes.iter().filter(|n| matches!(n.op, Op::Input(_))) {
            now = write(node.outs[0]);
        }
        for step in &plan.steps {
            for value in step.ins.iter().filter(|v| plan.graph.ty(**v) != Type::State) {
                assert!(now.iter().any(|(_, v)| v == value), "{value:?} was overwritten before {step:?}");
            }
            for value in step.outs.iter().filter(|v| plan.graph.ty(**v) != Type::State) {
                now = write(*value);
            }
        }
        for (_, value) in &plan.graph.outputs {
            assert!(now.iter().any(|(_, v)| v == value));
        }
        assert!(plan.arena_bytes < plan.graph.values.iter().map(|t| t.bytes(&plan.graph.key)).sum());
    }
}

#[test]
fn steps_wait_exactly_where_bytes_conflict() {
    let weights = weights();
    let plan = compile(graph(&weights, false), &weights, &Fake { fuse: false, bad: false }).unwrap();
    let mut since: Vec<&crate::Step> = Vec::new();
    for step in &plan.steps {
        let hits = |a: &[crate::Span], b: &[crate::Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        let conflict = since.iter().any(|s| {
            hits(&step.reads, &s.writes) || hits(&step.writes, &s.writes) || hits(&step.writes, &s.reads)
        });
        assert_eq!(step.after == After::Barrier, conflict, "{step:?}");
        if conflict {
            since.clear();
        }
        since.push(step);
    }
    // q, k and v share one wait.
    let label = |s: &crate::Step| plan.graph.node(s.nodes[0]).label;
    let qkv: Vec<_> = plan.steps.iter().filter(|s| ["q", "k", "v"].contains(&label(s))).collect();
    assert_eq!(qkv.iter().filter(|s| s.after == After::Barrier).count(), 1);
}

#[test]
fn fused_values_stay_inside_their_step() {
    let weights = weights();
    let plan = compile(graph(&weights, false), &weights, &Fake { fuse: true, bad: false }).unwrap();
    let step = plan.steps.iter().find(|s| s.kernel == "gate+up+glu").unwrap();
    assert_eq!((step.ins.len(), step.outs.len()), (1, 1));
    assert!(step.scratch.is_some_and(|s| s.bytes >= 1000));
    for node in &step.nodes[..2] {
        assert_eq!(plan.region(plan.graph.node(*node).outs[0]), None);
    }
    assert!(plan.to_string().contains("gate+up+glu"));
}

#[test]
fn missing_kernels_and_impossible_selections_are_errors() {
    let weights = weights();
    let error = compile(graph(&weights, true), &weights, &Fake { fuse: false, bad: false }).unwrap_err();
    assert!(error.to_string().contains("no kernel for softcap"), "{error}");
    let error = compile(graph(&weights, false), &weights, &Fake { fuse: false, bad: true }).unwrap_err();
    assert!(matches!(error, GraphError::BadSelection { kernel: "bad", .. }), "{error}");
}

#[test]
fn shape_mistakes_are_reported() {
    let weights = weights();
    let key = GraphKey { tokens: 1, seqs: 1, outputs: Outputs::All, kv_span: 64, wants: Wants::Logits };
    let mut b = GraphBuilder::new(key, &weights, Vec::new());
    let table = b.weight("embd");
    let x = b.embed(table, 1.0);
    let down = b.weight("down");
    b.linear(x, down, None, "down");
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("128 columns"), "{error}");
    let mut b = GraphBuilder::new(key, &weights, Vec::new());
    b.weight("nope");
    assert!(b.finish().unwrap_err().to_string().contains("nope"));
}
