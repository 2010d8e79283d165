//! Which device computes which layers of a model.

use std::sync::Arc;

use wootz_cpu::CpuOptions;
use wootz_graph::{Backend, CacheLayout, Device, DeviceInfo, DeviceKind, Graph, WeightTable};

use crate::backends;
use crate::error::Error;
use crate::options::ContextOptions;

/// Separates the names of several devices.
const SEPARATOR: char = ',';

/// Free memory that layers do not take where their number is found by memory, as a share: one part of so many.
const SPARED: u64 = 16;

/// A device and the number of layers that it computes.
pub(crate) struct Place {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) device: Arc<dyn Device>,
    /// What is known of the device; of memory, the share that is meant for this place.
    pub(crate) info: DeviceInfo,
    pub(crate) layers: usize,
}

/// Opens the devices that `options` names and gives each its layers; `graph` uses all weights of the model, `caches` are
/// about those that it will have.
///
/// # Errors
/// There is no such device, or the layers cannot be split as asked for.
pub(crate) fn places(
    options: &ContextOptions,
    graph: &Graph,
    weights: &WeightTable,
    caches: &CacheLayout,
    suits: &dyn Fn(&dyn Backend) -> bool,
) -> Result<Vec<Place>, Error> {
    let cpu = CpuOptions { threads: options.threads, repack: options.repack, isa: None };
    let opened = options.device.split(SEPARATOR).map(|name| backends::open(name.trim(), cpu, suits));
    let opened: Vec<backends::Opened> = opened.collect::<Result<_, _>>()?;
    let mut infos: Vec<DeviceInfo> = opened.iter().map(|(_, device)| device.info()).collect();
    // A device that is named twice has its memory once.
    let ids: Vec<String> = infos.iter().map(|info| info.id.clone()).collect();
    for info in &mut infos {
        let times = ids.iter().filter(|id| **id == info.id).count() as u64;
        info.memory_free = info.memory_free.map(|bytes| bytes / times);
    }
    let costs = layer_bytes(graph, weights, caches);
    let fail = |found: String, expected: String| Err(Error::Split { found, expected });
    if costs.len() < infos.len() {
        let expected = format!("at least {}, one for each device", infos.len());
        return fail(format!("{} layers", costs.len()), expected);
    }
    let layers = match &options.split {
        Some(split) if split.len() != infos.len() => {
            return fail(format!("{} shares", split.len()), format!("{}, one for each device", infos.len()));
        }
        Some(split) if split.contains(&0) => {
            return fail("a share of 0".into(), "a layer at least for each device".into());
        }
        Some(split) => {
            let shares: Vec<f64> = split.iter().map(|n| f64::from(*n)).collect();
            divide(&vec![1; costs.len()], &shares)
        }
        None => divide(&costs, &shares_by_memory(&infos, costs.iter().sum())),
    };
    let places = opened.into_iter().zip(infos).zip(layers);
    Ok(places.map(|(((backend, device), info), layers)| Place { backend, device, info, layers }).collect())
}

/// One description of several devices: of the slowest kind among them, with all their memory.
pub(crate) fn together(places: &[Place]) -> DeviceInfo {
    let infos = || places.iter().map(|place| &place.info);
    let joined =
        |text: fn(&DeviceInfo) -> &str| infos().map(text).collect::<Vec<_>>().join(&SEPARATOR.to_string());
    let kind = |kind| infos().any(|info| info.kind == kind).then_some(kind);
    DeviceInfo {
        id: joined(|info| &info.id),
        name: joined(|info| &info.name),
        kind: kind(DeviceKind::Cpu).or(kind(DeviceKind::UnifiedGpu)).unwrap_or(DeviceKind::DiscreteGpu),
        memory_total: infos().map(|info| info.memory_total).sum(),
        memory_free: infos().map(|info| info.memory_free).sum(),
        features: infos().flat_map(|info| info.features.iter().cloned()).collect(),
    }
}

/// Bytes of weights and caches of each layer; what lies before the first and after the last counts with it.
fn layer_bytes(graph: &Graph, weights: &WeightTable, caches: &CacheLayout) -> Vec<u64> {
    let layers = graph.nodes.iter().filter_map(|node| node.layer).max().map_or(0, |last| last as usize + 1);
    let mut bytes = vec![0; layers];
    let mut at = 0;
    for node in &graph.nodes {
        at = node.layer.map_or(at, usize::from);
        let matrix = node.op.weights().next().map_or(0, |id| weights.info(id).bytes());
        let cache = node.op.writes().map_or(0, |cache| caches.cache_bytes(cache));
        if let Some(sum) = bytes.get_mut(at) {
            *sum += matrix + cache;
        }
    }
    bytes
}

/// Shares of a model of so many bytes: GPUs in proportion to their free memory, the processor what they have no room
/// for.
fn shares_by_memory(infos: &[DeviceInfo], bytes: u64) -> Vec<f64> {
    let free: Option<Vec<u64>> = infos.iter().map(|info| info.memory_free).collect();
    let Some(free) = free else { return vec![1.0; infos.len()] };
    let room = |at: usize| (free[at] - free[at] / SPARED) as f64;
    let sum = |cpu: bool| -> f64 {
        let own = (0..infos.len()).filter(|at| (infos[*at].kind == DeviceKind::Cpu) == cpu);
        own.map(room).sum::<f64>().max(1.0)
    };
    let (gpus, cpus, all) = (sum(false), sum(true), bytes as f64);
    let on_gpus = match infos.iter().all(|info| info.kind == DeviceKind::Cpu) {
        true => 0.0,
        false => all.min(gpus),
    };
    let share = |at: usize| match infos[at].kind {
        DeviceKind::Cpu => (all - on_gpus) * room(at) / cpus,
        DeviceKind::UnifiedGpu | DeviceKind::DiscreteGpu => on_gpus * room(at) / gpus,
    };
    (0..infos.len()).map(share).collect()
}

/// Cuts layers into runs whose costs are about in proportion to `shares`, none of them empty.
fn divide(costs: &[u64], shares: &[f64]) -> Vec<usize> {
    let (all, sum) = (costs.iter().sum::<u64>() as f64, shares.iter().sum::<f64>().max(f64::MIN_POSITIVE));
    let (mut runs, mut start, mut target) = (Vec::new(), 0, 0.0);
    for (at, share) in shares.iter().enumerate() {
        target += all * share / sum;
        let after = shares.len() - 1 - at;
        let distance = |end: usize| (costs[..end].iter().sum::<u64>() as f64 - target).abs();
        let ends = start + 1..=costs.len() - after;
        let end = match after {
            0 => costs.len(),
            _ => ends.min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(start + 1),
        };
        runs.push(end - start);
        start = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_layers_where_they_sum_to_them_and_proportions_otherwise() {
        assert_eq!(divide(&[1; 32], &[20.0, 12.0]), [20, 12]);
        assert_eq!(divide(&[1; 24], &[3.0, 1.0]), [18, 6]);
        assert_eq!(divide(&[1; 3], &[1000.0, 1.0, 1.0]), [1, 1, 1]);
        assert_eq!(divide(&[1; 5], &[0.0, 1.0]), [1, 4]);
        // A heavy last layer, as one with a large head is.
        assert_eq!(divide(&[1, 1, 1, 1, 4], &[1.0, 1.0]), [4, 1]);
    }

    #[test]
    fn gpus_come_before_the_processor() {
        let info = |kind, free| DeviceInfo {
            id: String::new(),
            name: String::new(),
            kind,
            memory_total: None,
            memory_free: free,
            features: Vec::new(),
        };
        let (gpu, cpu) = (DeviceKind::DiscreteGpu, DeviceKind::Cpu);
        let shares = |list: &[(DeviceKind, u64)], bytes| {
            let infos: Vec<DeviceInfo> = list.iter().map(|(kind, free)| info(*kind, Some(*free))).collect();
            shares_by_memory(&infos, bytes)
        };
        // Of 1600 bytes 1500 may be taken.
        assert_eq!(shares(&[(gpu, 1600), (gpu, 800)], 900), [600.0, 300.0]);
        assert_eq!(shares(&[(gpu, 1600), (cpu, 9600)], 2000), [1500.0, 500.0]);
        assert_eq!(shares(&[(gpu, 1600), (cpu, 9600)], 1000), [1000.0, 0.0]);
        assert_eq!(shares(&[(cpu, 160), (cpu, 160)], 100), [50.0, 50.0]);
        assert_eq!(shares_by_memory(&[info(gpu, None), info(gpu, Some(1))], 100), [1.0, 1.0]);
    }
}
