//! What a device can do at most: steps of a model that does nothing but multiply.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wootz_graph::{
    CacheLayout, DeviceLimits, Executor, Graph, GraphBuilder, GraphKey, KvType, LoadRequest, Output, Outputs,
    RunError, StepInputs, Wants, WeightId, WeightInfo, WeightSource, WeightTable, passes,
};
use wootz_quant::WeightType;

use super::{ExecOptions, MetalExecutor};
use crate::backend::{MetalBackend, MetalOptions, NoDevices};
use crate::device::MetalDevice;

/// Square matrices of f16 elements and their size, from such as an emulated device multiplies to such as fit no cache.
const SIZES: [(usize, usize); 4] = [(1, 256), (2, 1024), (8, 2048), (8, 4096)];
/// Tokens of a prompt.
const TOKENS: [usize; 4] = [32, 64, 256, 512];
/// A step of this length is long enough to be timed.
const ENOUGH: Duration = Duration::from_millis(20);
/// Runs of a step, of which the fastest counts.
const RUNS: usize = 4;

/// Weights that are 0.
struct Zeros;

impl WeightSource for Zeros {
    fn read(&self, _id: WeightId, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn mapped(&self, _id: WeightId) -> Option<&[u8]> {
        None
    }
}

/// Measures bytes read and operations done per second.
pub(crate) fn limits(
    device: &Arc<dyn MetalDevice>,
    name: &str,
    options: ExecOptions,
) -> Result<DeviceLimits, RunError> {
    let mut limits = DeviceLimits { bytes_per_second: 0.0, ops_per_second: 0.0 };
    let (mut read, mut multiplied) = (false, false);
    for ((count, size), tokens) in SIZES.into_iter().zip(TOKENS) {
        let products = (count * size * size) as f64;
        let mut model = Products::new(device, name, options, count, size)?;
        if !read {
            let time = model.time(1)?;
            limits.bytes_per_second = limits.bytes_per_second.max(2.0 * products / time.as_secs_f64());
            read = time >= ENOUGH;
        }
        if !multiplied {
            let time = model.time(tokens)?;
            let ops = 2.0 * products * tokens as f64;
            limits.ops_per_second = limits.ops_per_second.max(ops / time.as_secs_f64());
            multiplied = time >= ENOUGH;
        }
    }
    Ok(limits)
}

/// A model that multiplies with one matrix after the other.
struct Products {
    executor: MetalExecutor,
    table: Arc<WeightTable>,
}

impl Products {
    fn new(
        device: &Arc<dyn MetalDevice>,
        name: &str,
        options: ExecOptions,
        count: usize,
        size: usize,
    ) -> Result<Products, RunError> {
        let mut table = WeightTable::default();
        let mut add = |name: String, ty, rows: usize| {
            table.push(WeightInfo { name, ty, rows: rows as u64, cols: size as u64, experts: 1 });
        };
        add("rows".into(), WeightType::F32, 1);
        (0..count).for_each(|i| add(format!("matrix {i}"), WeightType::F16, size));
        let table = Arc::new(table);
        let layout =
            CacheLayout { caches: Vec::new(), groups: Vec::new(), k_type: KvType::F16, v_type: KvType::F16 };
        let request = LoadRequest {
            weights: table.clone(),
            source: Arc::new(Zeros),
            caches: layout,
            graph: &graph(&table, 1)?,
        };
        let executor = MetalExecutor::load(device.clone(), name, "metal", options, request, &mut |_| ())?;
        Ok(Products { executor, table })
    }

    /// The fastest of some steps of so many tokens.
    fn time(&mut self, tokens: usize) -> Result<Duration, RunError> {
        let backend = MetalBackend::new("metal", MetalOptions::default(), Arc::new(NoDevices));
        let plan = passes::compile(graph(&self.table, tokens)?, &self.table, &backend);
        let program = self.executor.compile(plan.map_err(|e| RunError::Plan(e.to_string()))?)?;
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let inputs = StepInputs {
            tokens: &vec![0; tokens],
            positions: &positions,
            streams: &[],
            sequences: &vec![0; tokens],
            outputs: &[tokens as i32 - 1],
            groups: &[],
            hidden: &[],
        };
        let mut best = Duration::MAX;
        for _ in 0..RUNS {
            let start = Instant::now();
            let ticket = self.executor.submit(program, &inputs)?;
            self.executor.wait(ticket)?;
            best = best.min(start.elapsed());
            if best >= 10 * ENOUGH {
                // Slow as an emulated device is, more runs tell nothing new.
                break;
            }
        }
        Ok(best)
    }
}

fn graph(table: &WeightTable, tokens: usize) -> Result<Graph, RunError> {
    let key = GraphKey {
        tokens: tokens as u32,
        seqs: 1,
        outputs: Outputs::Some(1),
        kv_span: 1,
        wants: Wants::Hidden,
    };
    let mut builder = GraphBuilder::new(key, table, Vec::new());
    let weight = |name: &str| table.find(name).ok_or_else(|| RunError::Plan(format!("no weight {name}")));
    let mut x = builder.embed(weight("rows")?, 1.0);
    for i in 0.. {
        let Ok(matrix) = weight(&format!("matrix {i}")) else { break };
        x = builder.linear(x, matrix, None, "product");
    }
    let x = builder.gather_outputs(x);
    builder.output(Output::Hidden, x);
    builder.finish().map_err(|e| RunError::Plan(e.to_string()))
}
