//! What executors owe beside right results: steps under way together, blocks copied, saved and restored, traces.

use wootz_arch::decoders;
use wootz_graph::{
    Backend as _, BlockTable, Executor, KvType, RunError, StepInputs, TableSet, Ticket, passes,
};
use wootz_metal::emulator::Profile;
use wootz_metal::{MetalBackend, MetalOptions, dispatches};
use wootz_quant::WeightType;
use wootz_testkit::{nmse, tiny};

use crate::common::{Setup, backend};
use crate::model::TinyModel;

const TYPES: tiny::Types = tiny::Types(WeightType::Q4_0, WeightType::Q8_0);

/// A model of every family is on one device or the other. Every access is checked for the first two alone: those of the
/// others' kernels are, where whole models run.
fn models() -> impl Iterator<Item = (TinyModel, MetalBackend)> {
    decoders().enumerate().map(|(i, family)| {
        let profile = if i % 2 == 0 { Profile::unified() } else { Profile::discrete() };
        let profile = Profile { traced: i < 2, ..profile };
        (TinyModel::new(family, TYPES), backend(Setup::new(profile)))
    })
}

struct Run<'a> {
    model: &'a TinyModel,
    backend: &'a MetalBackend,
    executor: Box<dyn Executor>,
}

impl<'a> Run<'a> {
    fn new(model: &'a TinyModel, backend: &'a MetalBackend) -> Run<'a> {
        Run { model, backend, executor: model.load(backend, KvType::F16).unwrap() }
    }

    /// Submits tokens of one sequence, whose cache lies in these blocks.
    fn submit(&mut self, tokens: &[i32], position: usize, blocks: &[u32]) -> Result<Ticket, RunError> {
        let graph = self.model.graph(tokens.len());
        let plan = passes::compile(graph, self.model.weights(), self.backend).unwrap();
        let program = self.executor.compile(plan)?;
        let positions: Vec<i32> = (position..position + tokens.len()).map(|p| p as i32).collect();
        let tables = [BlockTable { first: 0, blocks }];
        self.executor.submit(
            program,
            &StepInputs {
                tokens,
                positions: &positions,
                streams: &[],
                sequences: &vec![0; tokens.len()],
                outputs: &[tokens.len() as i32 - 1],
                groups: &vec![TableSet { tables: &tables }; self.model.groups()],
                hidden: &[],
            },
        )
    }

    fn wait(&mut self, ticket: Ticket) -> Vec<f32> {
        self.executor.wait(ticket).unwrap().data.to_vec()
    }

    fn step(&mut self, tokens: &[i32], position: usize, blocks: &[u32]) -> Vec<f32> {
        let ticket = self.submit(tokens, position, blocks).unwrap();
        self.wait(ticket)
    }
}

fn text() -> Vec<i32> {
    (0..40).map(|i| i * 29 % 251).collect()
}

#[test]
fn two_steps_under_way() {
    for (model, backend) in models() {
        let mut run = Run::new(&model, &backend);
        let first = run.step(&text(), 0, &[3, 0]);
        let second = run.step(&[7], 40, &[3, 0]);
        // Again, in other blocks: the second step is submitted before anybody waits for the first.
        let a = run.submit(&text(), 0, &[1, 2]).unwrap();
        let b = run.submit(&[7], 40, &[1, 2]).unwrap();
        assert_eq!(run.wait(a), first);
        assert_eq!(run.wait(b), second);
        assert!(run.executor.wait(b).is_err(), "a result is there once");
    }
}

#[test]
fn blocks_are_copied_saved_and_restored() {
    for (model, backend) in models() {
        let mut run = Run::new(&model, &backend);
        run.step(&text(), 0, &[3, 0]);
        for group in 0..model.groups() as u32 {
            run.executor.copy_blocks(group, &[(3, 1), (0, 2)]).unwrap();
            assert!(run.executor.copy_blocks(group, &[(3, 99)]).is_err());
        }
        let mut other = Run::new(&model, &backend);
        for group in 0..model.groups() as u32 {
            for (from, to) in [(3, 2), (0, 3)] {
                let mut bytes = Vec::new();
                run.executor.read_block(group, from, &mut bytes).unwrap();
                other.executor.write_block(group, to, &bytes).unwrap();
                assert!(other.executor.write_block(group, to, &bytes[1..]).is_err());
            }
        }
        // A step changes states where they are, so all else comes before it.
        let expected = run.step(&[7], 40, &[3, 0]);
        assert_eq!(run.step(&[7], 40, &[1, 2]), expected);
        assert_eq!(other.step(&[7], 40, &[2, 3]), expected);
    }
}

#[test]
fn a_prompt_in_pieces_gives_nearly_the_same() {
    for (model, backend) in models() {
        let mut run = Run::new(&model, &backend);
        let whole = run.step(&text(), 0, &[3, 0]);
        for pieces in [[5, 35], [39, 1], [33, 7]] {
            run.step(&text()[..pieces[0]], 0, &[1, 2]);
            let found = run.step(&text()[pieces[0]..], pieces[0], &[1, 2]);
            let error = nmse(&found, &whole);
            assert!(error < 1e-6, "{pieces:?}: error {error:.1e}");
        }
    }
}

#[test]
fn a_trace_has_every_step() {
    for (model, backend) in models().take(2) {
        let mut run = Run::new(&model, &backend);
        let expected = run.step(&[1, 2, 3], 0, &[0]);
        run.executor.set_tracing(true);
        assert_eq!(run.step(&[1, 2, 3], 0, &[0]), expected);
        let plan = passes::compile(model.graph(3), model.weights(), &backend).unwrap();
        let steps: Vec<u32> = run.executor.take_trace().iter().map(|t| t.step).collect();
        assert_eq!(steps, (0..plan.steps.len() as u32).collect::<Vec<_>>());
    }
}

#[test]
fn a_trace_counts_what_is_fused() {
    let types = tiny::Types(WeightType::Q4_0, WeightType::Q8_0);
    let model = TinyModel::new(decoders().next().unwrap(), types);
    let count = |fusion: bool, tokens: &[i32]| {
        let options = MetalOptions { fusion, ..MetalOptions::default() };
        let backend = backend(Setup { options, ..Setup::new(Profile::unified().untraced()) });
        let mut run = Run::new(&model, &backend);
        run.executor.set_tracing(true);
        run.step(tokens, 0, &[0]);
        let plan = passes::compile(model.graph(tokens.len()), model.weights(), &backend).unwrap();
        let trace = run.executor.take_trace();
        assert_eq!(trace.len(), plan.steps.len());
        for time in &trace {
            let step = &plan.steps[time.step as usize];
            let expected = dispatches(&plan, step, model.weights());
            assert_eq!(time.dispatches as usize, expected, "{}, {} tokens", step.kernel, tokens.len());
            assert!(fusion || step.nodes.len() == 1, "{}", step.kernel);
        }
        let operations: usize = plan.steps.iter().map(|s| s.nodes.len()).sum();
        (operations, trace.iter().map(|t| t.dispatches as usize).sum::<usize>())
    };
    for tokens in [&[1][..], &[3; 20]] {
        let ((fused, few), (plain, many)) = (count(true, tokens), count(false, tokens));
        assert_eq!(fused, plain, "the same operations run");
        assert!(few < many && many >= plain, "{few} dispatches with fusion, {many} without, of {plain}");
    }
}

#[test]
fn bad_inputs_are_errors() {
    let (model, backend) = models().next().unwrap();
    let mut run = Run::new(&model, &backend);
    assert!(run.submit(&[-1], 0, &[0]).is_err(), "no such token");
    assert!(run.submit(&[1 << 20], 0, &[0]).is_err(), "no such token");
    assert!(run.submit(&[1], 64, &[0]).is_err(), "no block for the position");
    run.step(&[1], 0, &[0]);
}

#[test]
fn limits_are_measured() {
    let backend = backend(Setup::new(Profile::unified().untraced()));
    let limits = backend.open(0).unwrap().limits().unwrap();
    for rate in [limits.bytes_per_second, limits.ops_per_second] {
        assert!(rate.is_finite() && rate > 0.0, "{limits:?}");
    }
}
