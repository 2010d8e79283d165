//! Gives every value a place in one arena, reusing memory whose value is no longer needed.

use crate::error::GraphError;
use crate::graph::{Graph, Type, ValueId};
use crate::op::Op;
use crate::plan::{Plan, Region, Step};

/// Alignment of values, in bytes: a cache line, and enough for every vector unit and GPU.
const ALIGN: usize = 256;

/// Places inputs, values between steps, scratch memory and outputs.
///
/// # Errors
/// A step reads a value that nothing makes.
pub fn place(graph: Graph, mut steps: Vec<Step>, backend: &'static str) -> Result<Plan, GraphError> {
    let mut arena = Arena::default();
    let mut regions: Vec<Option<Region>> = vec![None; graph.values.len()];
    let last_use = last_uses(&graph, &steps);
    for (_, node) in graph.iter().filter(|(_, n)| matches!(n.op, Op::Input(_))) {
        for value in &node.outs {
            regions[value.0 as usize] = Some(arena.take(graph.ty(*value).bytes(&graph.key)));
        }
    }
    for (i, step) in steps.iter_mut().enumerate() {
        for value in &step.ins {
            if regions[value.0 as usize].is_none() && graph.ty(*value) != Type::State {
                return Err(GraphError::Dangling { value: *value });
            }
        }
        let taken_over = step.in_place.filter(|(input, output)| {
            last_use[input.0 as usize] == Some(i)
                && step.ins.contains(input)
                && step.outs.contains(output)
                && !graph.is_output(*input)
                && graph.ty(*input).bytes(&graph.key) == graph.ty(*output).bytes(&graph.key)
        });
        step.in_place = taken_over;
        for value in &step.outs {
            regions[value.0 as usize] = match taken_over {
                Some((input, output)) if output == *value => regions[input.0 as usize],
                _ if graph.ty(*value) == Type::State => None,
                _ => Some(arena.take(graph.ty(*value).bytes(&graph.key))),
            };
        }
        if let Some(scratch) = &mut step.scratch {
            *scratch = arena.take(scratch.bytes);
            arena.give(*scratch);
        }
        let dead = |v: &ValueId| last_use[v.0 as usize].is_none_or(|l| l <= i) && !graph.is_output(*v);
        for value in step.ins.iter().chain(&step.outs).filter(|v| dead(v)) {
            let kept = taken_over.is_some_and(|(input, output)| input == *value && !dead(&output));
            if !kept && let Some(region) = regions[value.0 as usize] {
                arena.give(region);
            }
        }
    }
    let arena_bytes = arena.top;
    Ok(Plan { backend, graph, steps, regions, arena_bytes })
}

/// The last step that reads each value.
fn last_uses(graph: &Graph, steps: &[Step]) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.values.len()];
    for (i, step) in steps.iter().enumerate() {
        for value in &step.ins {
            last[value.0 as usize] = Some(i);
        }
    }
    last
}

/// Free pieces below the top, sorted by offset, none touching another.
#[derive(Default)]
struct Arena {
    free: Vec<Region>,
    top: usize,
}

impl Arena {
    /// The smallest free piece that fits, or new memory at the top.
    fn take(&mut self, bytes: usize) -> Region {
        let bytes = bytes.next_multiple_of(ALIGN);
        if bytes == 0 {
            return Region { offset: 0, bytes };
        }
        let best =
            (0..self.free.len()).filter(|i| self.free[*i].bytes >= bytes).min_by_key(|i| self.free[*i].bytes);
        if let Some(i) = best {
            let piece = &mut self.free[i];
            let region = Region { offset: piece.offset, bytes };
            piece.offset += bytes;
            piece.bytes -= bytes;
            if piece.bytes == 0 {
                self.free.remove(i);
            }
            return region;
        }
        // A free piece that ends at the top grows.
        let offset = match self.free.last() {
            Some(last) if last.offset + last.bytes == self.top => {
                let offset = last.offset;
                self.free.pop();
                offset
            }
            _ => self.top,
        };
        self.top = offset + bytes;
        Region { offset, bytes }
    }

    fn give(&mut self, region: Region) {
        if region.bytes == 0 {
            return;
        }
        let at = self.free.partition_point(|r| r.offset < region.offset);
        // A value that was never read and also taken over could come twice; memory is given back once.
        if self.free.iter().any(|r| r.overlaps(&region)) {
            return;
        }
        self.free.insert(at, region);
        if at + 1 < self.free.len() && self.free[at].offset + self.free[at].bytes == self.free[at + 1].offset
        {
            self.free[at].bytes += self.free.remove(at + 1).bytes;
        }
        if at > 0 && self.free[at - 1].offset + self.free[at - 1].bytes == self.free[at].offset {
            self.free[at - 1].bytes += self.free.remove(at).bytes;
        }
    }
}
