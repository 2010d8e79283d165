//! Steps through two stages, the second of which picks tokens and can be broken.

use std::sync::atomic::{AtomicBool, Ordering};

use wootz_graph::{BlockTable, DeviceInfo, TableSet, picked_token};
use wootz_quant::WeightType;
use wootz_testkit::tiny;

use super::*;
use crate::fit;
use crate::model::ModelOptions;
use crate::options::ContextOptions;
use crate::placement;

/// An executor that picks the most likely token, or fails.
struct Breakable {
    inner: Box<dyn Executor>,
    is_broken: Arc<AtomicBool>,
}

impl Breakable {
    fn check(&self) -> Result<(), RunError> {
        match self.is_broken.load(Ordering::Relaxed) {
            true => Err(RunError::Device { device: "second".into(), reason: "it broke".into() }),
            false => Ok(()),
        }
    }
}

/// The place of the largest.
fn best(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}

impl Executor for Breakable {
    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }

    fn compile(&mut self, plan: Plan) -> Result<ProgramId, RunError> {
        self.inner.compile(plan)
    }

    fn submit(&mut self, program: ProgramId, inputs: &StepInputs<'_>) -> Result<Ticket, RunError> {
        self.check()?;
        self.inner.submit(program, inputs)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, RunError> {
        self.inner.wait(ticket)
    }

    fn can_pick(&self, _: &Sampling<'_>) -> bool {
        true
    }

    fn submit_picking(
        &mut self,
        program: ProgramId,
        inputs: &StepInputs<'_>,
        _: &[Sampling<'_>],
    ) -> Result<Ticket, RunError> {
        self.submit(program, inputs)
    }

    fn wait_picked(&mut self, ticket: Ticket) -> Result<Vec<Picked>, RunError> {
        self.check()?;
        let rows = self.inner.wait(ticket)?;
        Ok((0..rows.rows).map(|row| Picked::Token(best(rows.row(row)))).collect())
    }

    fn set_tracing(&mut self, on: bool) {
        self.inner.set_tracing(on);
    }

    fn take_trace(&mut self) -> Vec<StepTime> {
        self.inner.take_trace()
    }

    fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError> {
        self.inner.copy_blocks(group, pairs)
    }

    fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError> {
        self.inner.read_block(group, block, out)
    }

    fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError> {
        self.inner.write_block(group, block, bytes)
    }
}

/// A device of such executors.
struct BreakableDevice(Arc<dyn Device>, Arc<AtomicBool>);

impl Device for BreakableDevice {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn limits(&self) -> Result<DeviceLimits, RunError> {
        self.0.limits()
    }

    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError> {
        let inner = self.0.load(request, progress)?;
        Ok(Box::new(Breakable { inner, is_broken: self.1.clone() }))
    }
}

const TOKENS: usize = 16;
const CONTEXT: usize = 64;

/// A tiny model of two layers on two devices, and what breaks the second.
fn runner() -> (Runner, Arc<AtomicBool>) {
    let llama = wootz_arch::find("llama").unwrap();
    let bytes = tiny::build(llama, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
    let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default()).unwrap());
    let options = ContextOptions { device: "cpu,cpu".into(), threads: Some(1), ..Default::default() };
    let graph = model.arch().graph(key(TOKENS, 1, 1, false, TOKENS, CONTEXT)).unwrap();
    let caches = fit::layout(&model, CONTEXT, 1, TOKENS, &options);
    let weights = model.arch().weights();
    let mut places = placement::places(&options, &graph, weights, &caches, &|_| true).unwrap();
    let is_broken = Arc::new(AtomicBool::new(false));
    places[1].device = Arc::new(BreakableDevice(places[1].device.clone(), is_broken.clone()));
    let runner = Runner::load(model.clone(), places, graph, &caches, CONTEXT, &mut |_| ()).unwrap();
    (runner, is_broken)
}

/// Starts a step of one sequence that returns its last row, or picks a token from it.
fn submit(runner: &mut Runner, tokens: &[i32], position: usize, picks: bool) -> Result<Ticket, Error> {
    let positions: Vec<i32> = (position..position + tokens.len()).map(|p| p as i32).collect();
    let inputs = StepInputs {
        tokens,
        positions: &positions,
        streams: &[],
        sequences: &vec![0; tokens.len()],
        outputs: &[tokens.len() as i32 - 1],
        groups: &[TableSet { tables: &[BlockTable { first: 0, blocks: &[1, 0] }] }],
        hidden: &[],
    };
    let sampling = picks.then_some(&[Sampling::GREEDY][..]);
    runner.submit(&inputs, sampling, false, position + tokens.len(), Wants::Logits)
}

const PROMPT: [i32; 5] = [7, 3, 250, 31, 9];

#[test]
fn a_stage_that_fails_fails_the_step_alone() {
    let (mut runner, is_broken) = runner();
    let mut row = || -> Result<Vec<f32>, Error> {
        let ticket = submit(&mut runner, &PROMPT, 0, false)?;
        Ok(runner.output(ticket)?.data.to_vec())
    };
    let expected = row().unwrap();
    is_broken.store(true, Ordering::Relaxed);
    assert_eq!(row().unwrap_err().to_string(), "second failed: it broke");
    is_broken.store(false, Ordering::Relaxed);
    assert_eq!(row().unwrap(), expected);
}

#[test]
fn the_first_stage_is_told_what_the_last_one_picked() {
    let (mut runner, _) = runner();
    let mut token = |tokens: &[i32], position| {
        let ticket = submit(&mut runner, tokens, position, false).unwrap();
        best(runner.output(ticket).unwrap().data)
    };
    let first = token(&PROMPT, 0);
    let second = token(&[first as i32], PROMPT.len());
    let a = submit(&mut runner, &PROMPT, 0, true).unwrap();
    let b = submit(&mut runner, &[picked_token(0)], PROMPT.len(), true).unwrap();
    assert_eq!(runner.picked(a).unwrap(), [Picked::Token(first)]);
    assert_eq!(runner.picked(b).unwrap(), [Picked::Token(second)]);
    // The token that was picked last may be asked for after it was told; of a row that there was not, there is none.
    assert!(submit(&mut runner, &[picked_token(0)], PROMPT.len() + 1, true).is_ok());
    assert!(submit(&mut runner, &[picked_token(1)], PROMPT.len() + 2, true).is_err());
}

#[test]
fn whoever_waits_for_a_failed_pick_hears_why() {
    let (mut runner, is_broken) = runner();
    let ticket = submit(&mut runner, &PROMPT, 0, true).unwrap();
    is_broken.store(true, Ordering::Relaxed);
    let next = submit(&mut runner, &[picked_token(0)], PROMPT.len(), true).unwrap_err();
    assert!(next.to_string().contains("the step before picked no tokens"), "{next}");
    assert_eq!(runner.picked(ticket).unwrap_err().to_string(), "second failed: it broke");
}
