//! Metal plans for the shapes of real models: dispatches, barriers and bytes of a decode step and of a prompt's chunk.
//!
//! Their snapshot is `golden/plans/metal-shapes.txt`, their table stands in docs/metal.md;
//! `WOOTZ_UPDATE_SNAPSHOTS=1` writes both.

use std::path::Path;
use std::sync::Arc;

use wootz_graph::{After, GraphKey, Outputs, Plan, Span, Step, StepCounts, Wants, WeightSpec, cost, passes};
use wootz_metal::{MetalBackend, MetalOptions, NoDevices, barriers, dispatches};
use wootz_quant::WeightType;
use wootz_testkit::snapshot;

/// Positions in the cache.
const SPAN: u32 = 1024;
/// Dispatches of a layer that a decode step may take.
const DISPATCHES: usize = 8;
/// The layer that is shown: neither the first nor the last, which differ.
const LAYER: u16 = 1;

const BEGIN: &str = "<!-- table of plans: printed by crates/wootz/tests/metal_plans.rs -->\n";
const END: &str = "<!-- end of the table of plans -->\n";

/// The metadata and shapes of a model, without bytes.
fn shape(layers: u32, dim: u32, heads: u32, kv_heads: u32, ff: u32) -> wootz_arch::Model {
    let mut meta = wootz_gguf::Metadata::default();
    let mut set = |key: &str, value: u32| {
        meta.set(&format!("qwen2.{key}"), value).unwrap();
    };
    set("block_count", layers);
    set("embedding_length", dim);
    set("attention.head_count", heads);
    set("attention.head_count_kv", kv_heads);
    set("feed_forward_length", ff);
    set("context_length", 4096);
    set("vocab_size", 151_936);
    meta.set("general.architecture", "qwen2").unwrap();
    meta.set("qwen2.attention.layer_norm_rms_epsilon", 1e-6f32).unwrap();
    let arch = wootz_arch::find("qwen2").unwrap();
    let hp = arch.hparams(&meta).unwrap();
    let mut spec = WeightSpec::default();
    arch.weights(&hp, &mut spec);
    let entries = spec.entries().to_vec();
    let find = |name: &str| {
        let entry = entries.iter().find(|e| e.name == name)?;
        let ty = match (entry.rows, name.contains("attn_v") || name.contains("ffn_down")) {
            (1, _) => WeightType::F32,
            // As in files of mixed types.
            (_, true) => WeightType::Q6_K,
            _ => WeightType::Q4_K,
        };
        Some((ty, entry.rows, entry.cols))
    };
    wootz_arch::Model::new(&meta, find).unwrap()
}

/// A step whose plan is looked at.
struct Shape {
    model: &'static str,
    step: &'static str,
    tokens: u32,
    weights: wootz_arch::Model,
    plan: Plan,
}

/// The shapes of Qwen2.5 0.5B and 7B, for one token, a token of each of four sequences, and a chunk of a prompt.
fn shapes() -> Vec<Shape> {
    let backend = MetalBackend::new("metal", MetalOptions::default(), Arc::new(NoDevices));
    let mut shapes = Vec::new();
    for (model, dims) in [("0.5B", (24, 896, 14, 2, 4864)), ("7B", (28, 3584, 28, 4, 18944))] {
        for (step, tokens, seqs) in [("1 token", 1, 1), ("4 sequences", 4, 4), ("512 tokens", 512, 1)] {
            let weights = shape(dims.0, dims.1, dims.2, dims.3, dims.4);
            let outputs = Outputs::Some(seqs);
            let key = GraphKey { tokens, seqs, outputs, kv_span: SPAN, wants: Wants::Logits };
            let graph = weights.graph(key).unwrap();
            let plan = passes::compile(graph, weights.weights(), &backend).unwrap();
            shapes.push(Shape { model, step, tokens, weights, plan });
        }
    }
    shapes
}

impl Shape {
    fn layer(&self, step: &Step) -> Option<u16> {
        step.nodes.iter().find_map(|n| self.plan.graph.node(*n).layer)
    }

    /// Dispatches and barriers of some steps.
    fn launches<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> (usize, usize) {
        steps.fold((0, 0), |(d, b), step| {
            (d + dispatches(&self.plan, step, self.weights.weights()), b + barriers(&self.plan, step))
        })
    }

    fn in_layer(&self) -> (usize, usize) {
        self.launches(self.plan.steps.iter().filter(|s| self.layer(s) == Some(LAYER)))
    }

    /// Bytes that the step has to move: of weights, of caches and of values between dispatches.
    fn bytes(&self) -> u64 {
        let counts = StepCounts {
            tokens: self.tokens as usize,
            outputs: self.plan.graph.key.output_rows() as usize,
            span: SPAN as usize,
            kv_bits: (16, 16),
        };
        let steps = self.plan.steps.iter();
        steps.map(|s| cost(&self.plan.graph, self.weights.weights(), s, counts).bytes).sum()
    }

    fn row(&self) -> String {
        let (dispatches, barriers) = self.launches(self.plan.steps.iter());
        let layer = self.in_layer();
        format!(
            "| {} | {} | {} | {} | {dispatches} | {barriers} | {:.1} | {:.2} |\n",
            self.model,
            self.step,
            layer.0,
            layer.1,
            self.bytes() as f64 / f64::from(1 << 20),
            self.plan.arena_bytes as f64 / f64::from(1 << 20)
        )
    }

    /// The steps of a layer, `|` where one waits for those before it.
    fn steps(&self) -> String {
        let mut text = String::new();
        for step in self.plan.steps.iter().filter(|s| self.layer(s) == Some(LAYER)) {
            let labels = step.nodes.iter().map(|n| self.plan.graph.node(*n).label).collect::<Vec<_>>();
            let mark = if step.after == After::Barrier { '|' } else { ' ' };
            let count = dispatches(&self.plan, step, self.weights.weights());
            text += &format!("  {mark} {count} {:<14} {}\n", step.kernel, labels.join("+"));
        }
        text
    }
}

const HEAD: &str = "| Qwen2.5 | step | dispatches a layer | barriers a layer | dispatches | barriers | MiB to move | \
                    MiB of values |\n|---|---|---:|---:|---:|---:|---:|---:|\n";

#[test]
fn plans_of_real_shapes_are_those_of_the_snapshot_and_the_table() {
    let (mut table, mut layers) = (HEAD.to_owned(), String::new());
    for shape in shapes() {
        table += &shape.row();
        layers += &format!("\n{}, {}, layer {LAYER}:\n{}", shape.model, shape.step, shape.steps());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    snapshot(&root.join("tests/golden/plans/metal-shapes.txt"), &format!("{table}{layers}")).unwrap();
    let path = root.join("../../docs/metal.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    snapshot(&path, &format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
}

#[test]
fn a_decode_step_has_few_dispatches() {
    for shape in shapes().iter().filter(|s| s.tokens == 1) {
        let (dispatches, barriers) = shape.in_layer();
        assert!(dispatches <= DISPATCHES, "{}: {dispatches} dispatches a layer", shape.model);
        assert!(barriers <= dispatches, "{}: {barriers} barriers a layer", shape.model);
    }
}

#[test]
fn barriers_stand_only_where_bytes_conflict() {
    let hit = |a: &[Span], b: &[Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
    for shape in shapes() {
        let mut running: Vec<&Step> = Vec::new();
        for step in &shape.plan.steps {
            let conflict = running.iter().any(|before| {
                hit(&step.reads, &before.writes)
                    || hit(&step.writes, &before.writes)
                    || hit(&step.writes, &before.reads)
            });
            let waits = step.after == After::Barrier;
            assert_eq!(waits, conflict, "{}, {}: {}", shape.model, shape.step, step.kernel);
            if waits {
                running.clear();
            }
            running.push(step);
        }
    }
}
