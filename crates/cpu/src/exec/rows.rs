//! Chains on rows, products, and the products of experts.

use std::collections::HashMap;
use std::sync::Mutex;

use wootz_graph::{RunError, WeightId};

use super::arena::View;
use super::program::{ChainLink, ExpertProduct, Place, Product, RowOp};
use super::run::{Scratch, each_row, each_rows};
use super::weights::Weights;
use crate::norm::NormParams;
use crate::pool::Pool;
use crate::{ActForm, ActRows, Activations, CpuError, Isa, Linear, LinearSet, elementwise, norm};

/// The processor's means of running a step.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) isa: Isa,
    pub(super) pool: &'a Pool,
    /// Buffers of each worker.
    pub(super) scratch: &'a [Mutex<Scratch>],
    /// Values. Steps run one after the other. Within a step each thread writes rows of the outputs that it alone was
    /// given, and the memory pass gave a step's outputs bytes that its inputs do not share, but for a row that a
    /// chain itself has read before it writes it.
    pub(super) view: View<'a>,
}

/// Quantised rows by form and columns.
pub(super) type ActivationPool = HashMap<(ActForm, usize), Activations>;

/// Looks rows of a table up.
pub(super) fn embed(
    host: Host<'_>,
    weights: &Weights,
    table: WeightId,
    scale: f32,
    ids: &[i32],
    out: &Place,
) -> Result<(), RunError> {
    each_row(host, ids.len(), out.cols, |row, scratch| {
        // SAFETY: see `Host::view`.
        let to = unsafe { host.view.f32_mut(out, row, 1) };
        let id = u64::try_from(ids[row]).map_err(|_| RunError::Input(format!("token {}", ids[row])))?;
        weights.row(table, id, &mut scratch.bytes, to)?;
        if scale != 1.0 {
            elementwise::scale_in_place(host.isa, scale, to);
        }
        Ok(())
    })
}

/// Takes each of `n` rows of `source` through a chain, and quantises what products read.
pub(super) fn chain(
    host: Host<'_>,
    source: &Place,
    links: &[ChainLink],
    products: &[Product],
    activations: &mut ActivationPool,
    n: usize,
) -> Result<(), RunError> {
    let mut writers = Vec::new();
    for (key, a) in activations.iter_mut() {
        if products.iter().any(|p| (p.matrix.form(), p.matrix.cols()) == *key) {
            a.set_tokens(n)?;
            writers.push(a.rows_mut());
        }
    }
    let cost = source.cols * (links.len() + writers.len());
    let together = writers.iter().map(ActRows::tile_tokens).max().unwrap_or(1);
    each_rows(host, n, together, cost, |rows, scratch| {
        let Scratch { at_hand: a, next: b, results, .. } = scratch;
        let (cols, last) = (source.cols, links.len().checked_sub(1));
        results.resize(results.len().max(rows.len() * cols), 0.0);
        for row in rows.clone() {
            // SAFETY: see `Host::view`.
            let mut at_hand: &[f32] = unsafe { host.view.f32(source, row, 1) };
            for (i, link) in links.iter().enumerate() {
                let to: &mut [f32] = if Some(i) == last {
                    &mut results[(row - rows.start) * cols..][..cols]
                } else {
                    let to = if i % 2 == 0 { &mut *a } else { &mut *b };
                    to.resize(cols, 0.0);
                    to
                };
                apply(host, &link.op, row, at_hand, to)?;
                if let Some(out) = &link.out {
                    // SAFETY: see `Host::view`.
                    unsafe { host.view.f32_mut(out, row, 1) }.copy_from_slice(to);
                }
                // SAFETY: the buffer lives as long as the worker's scratch and is next written two links on, when
                // nothing reads it any more.
                at_hand = unsafe { std::slice::from_raw_parts(to.as_ptr(), to.len()) };
            }
        }
        let results = match last {
            Some(_) => &results[..rows.len() * cols],
            // SAFETY: see `Host::view`.
            None => unsafe { host.view.f32(source, rows.start, rows.len()) },
        };
        for writer in &writers {
            // SAFETY: these rows are this worker's alone.
            unsafe { writer.write(rows.start, results) };
        }
        Ok(())
    })
}

/// One operation on one row.
fn apply(host: Host<'_>, op: &RowOp, row: usize, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    let isa = host.isa;
    // SAFETY: see `Host::view`.
    let other = |place: &Place| unsafe { host.view.f32(place, row, 1) };
    match op {
        RowOp::Norm { norm, weight, bias } => {
            let params =
                NormParams { norm: *norm, cols: x.len(), weight: weight.as_deref(), bias: bias.as_deref() };
            norm::norm(isa, &params, x, out)
        }
        RowOp::Add { other: place } => elementwise::add(isa, x, other(place), out),
        RowOp::Mul { other: place } => elementwise::mul(isa, x, other(place), out),
        RowOp::MulWeight(factor) => elementwise::mul(isa, x, factor, out),
        RowOp::Lerp { other: place, m, row } => {
            elementwise::lerp(isa, x, other(place), [m.as_ref().map(other), row.as_deref()], out)
        }
        RowOp::Bonus { heads, weight, other: place, v } => {
            elementwise::bonus(isa, *heads, [x, other(place), other(v)], weight, out)
        }
        RowOp::AddRow(summand) => elementwise::add(isa, x, summand, out),
        RowOp::Glu { activation, other: place, gate_is_other: false } => {
            elementwise::glu(isa, *activation, x, other(place), out)
        }
        RowOp::Glu { activation, other: place, gate_is_other: true } => {
            elementwise::glu(isa, *activation, other(place), x, out)
        }
        RowOp::GluClamped { unit, other: place, gate_is_other: false } => {
            elementwise::glu_clamped(isa, *unit, x, other(place), out)
        }
        RowOp::GluClamped { unit, other: place, gate_is_other: true } => {
            elementwise::glu_clamped(isa, *unit, other(place), x, out)
        }
        RowOp::Activate(activation) => elementwise::activate(isa, *activation, x, out),
        RowOp::Scale(factor) => elementwise::scale(isa, *factor, x, out),
        RowOp::Softcap(cap) => elementwise::softcap(isa, *cap, x, out),
    }
}

/// Multiplies the quantised rows with all matrices of a step.
pub(super) fn products(
    host: Host<'_>,
    products: &[Product],
    activations: &ActivationPool,
    n: usize,
) -> Result<(), RunError> {
    let Host { pool, view, .. } = host;
    let mut sets = Vec::new();
    for (key, acts) in activations {
        let own = products.iter().filter(|p| (p.matrix.form(), p.matrix.cols()) == *key).map(|p| Linear {
            weights: p.matrix.weights(),
            // SAFETY: see `Host::view`; each product has its own output.
            out: unsafe { view.f32_mut(&p.out, 0, n) },
            stride: p.out.cols,
        });
        let own: Vec<Linear<'_>> = own.collect();
        if !own.is_empty() {
            sets.push(LinearSet::new(acts, own, pool.workers())?);
        }
    }
    work(pool, sets)?;
    for product in products.iter() {
        let Some(bias) = &product.bias else { continue };
        each_row(host, n, product.out.cols, |row, _| {
            // SAFETY: see `Host::view`.
            elementwise::add_in_place(host.isa, unsafe { view.f32_mut(&product.out, row, 1) }, bias)
                .map_err(RunError::from)
        })?;
    }
    Ok(())
}

fn work(pool: &Pool, sets: Vec<LinearSet<'_>>) -> Result<(), RunError> {
    if sets.iter().all(LinearSet::is_small) {
        sets.iter().for_each(LinearSet::work);
    } else {
        pool.run(&|_| sets.iter().for_each(LinearSet::work));
    }
    sets.into_iter().try_for_each(LinearSet::finish)
}

/// Multiplies each row's parts with the matrices of its experts, for all products in one parallel region.
pub(super) fn experts(
    host: Host<'_>,
    products: &[ExpertProduct],
    choice: Choice<'_>,
    activations: &mut ActivationPool,
    results: &mut Vec<f32>,
    n: usize,
) -> Result<(), RunError> {
    let Choice { x, used, ids } = choice;
    let Some(first) = products.first().and_then(|product| product.matrices.first()) else { return Ok(()) };
    let (inner, experts) = (first.cols(), products[0].matrices.len());
    let key = |product: &ExpertProduct| (product.matrices[0].form(), product.matrices[0].cols());
    if products.iter().any(|p| p.matrices.len() != experts || key(p).1 != inner) {
        return Err(RunError::Plan("products of one choice with other experts".into()));
    }
    let shared = x.cols == inner;
    // The experts of one row read it where it lies once; more rows lie in the order of their experts.
    let alone = n == 1 && shared;
    let tokens = if alone { 1 } else { n * used };
    let order = ByExpert::new(ids, experts);
    let tokens_of = |group: &Group| if alone { 0..1 } else { group.places.clone() };
    let mut writers = Vec::new();
    for (form, acts) in activations.iter_mut() {
        if products.iter().any(|product| key(product) == *form) {
            acts.set_tokens(tokens)?;
            writers.push(acts.rows_mut());
        }
    }
    each_row(host, tokens, inner * writers.len(), |place, _| {
        let slot = order.slots[place] as usize;
        let column = if shared { 0 } else { slot % used * inner };
        let group = &order.groups[order.group_of[place] as usize];
        let tokens = tokens_of(group);
        for writer in &writers {
            // SAFETY: see `Host::view`; this place is this worker's alone.
            unsafe {
                let x = &host.view.f32(x, slot / used, 1)[column..column + inner];
                writer.part(tokens.clone()).write(place - tokens.start, x);
            }
        }
        Ok(())
    })?;
    // Memory that grows to the largest step and is written before it is read.
    let rows_of = |product: &ExpertProduct| product.matrices[0].rows();
    let size = n * used * products.iter().map(rows_of).sum::<usize>();
    results.resize(results.len().max(size), 0.0);
    let mut rest = &mut results[..size];
    let mut jobs = Vec::new();
    for product in products {
        let rows = rows_of(product);
        let Some(acts) = activations.get(&key(product)) else {
            return Err(RunError::Plan("expert products without their activations".into()));
        };
        for group in &order.groups {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(group.places.len() * rows);
            rest = others;
            let weights = product.matrices[group.expert].weights();
            jobs.push((acts.part(tokens_of(group)), Linear { weights, out: own, stride: rows }));
        }
    }
    let set = LinearSet::of_parts(jobs, host.pool.workers())?;
    work(host.pool, vec![set])?;
    each_row(host, n, size / n.max(1), |row, _| {
        let mut results = &results[..size];
        for product in products {
            let rows = rows_of(product);
            let (own, others) = results.split_at(n * used * rows);
            results = others;
            // SAFETY: see `Host::view`.
            let out = unsafe { host.view.f32_mut(&product.out, row, 1) };
            for (to, place) in out.chunks_exact_mut(rows).zip(&order.place_of[row * used..]) {
                let place = *place as usize;
                let result = &own[place * rows..(place + 1) * rows];
                match &product.bias {
                    Some(bias) => {
                        let expert = order.groups[order.group_of[place] as usize].expert;
                        elementwise::add(host.isa, result, &bias[expert * rows..(expert + 1) * rows], to)?;
                    }
                    None => to.copy_from_slice(result),
                }
            }
        }
        Ok(())
    })
}

/// Rows and the experts that each of them chose.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    /// Rows of one part for all chosen experts, or of a part for each.
    pub(super) x: &'a Place,
    /// Experts that a row chooses.
    pub(super) used: usize,
    /// The experts, `used` of each row.
    pub(super) ids: &'a [i32],
}

/// The slots of all rows, `used` a row, sorted by the experts that they chose.
struct ByExpert {
    /// Slots by place.
    slots: Vec<u32>,
    /// Places by slot.
    place_of: Vec<u32>,
    /// Groups by place.
    group_of: Vec<u32>,
    /// The experts that were chosen, and their places.
    groups: Vec<Group>,
}

struct Group {
    expert: usize,
    places: std::ops::Range<usize>,
}

impl ByExpert {
    fn new(ids: &[i32], experts: usize) -> ByExpert {
        let mut ends = vec![0usize; experts];
        ids.iter().for_each(|id| ends[*id as usize] += 1);
        let (mut groups, mut group_of) = (Vec::new(), Vec::with_capacity(ids.len()));
        for (expert, end) in ends.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let places = group_of.len()..group_of.len() + *end;
            group_of.resize(places.end, groups.len() as u32);
            *end = places.start;
            groups.push(Group { expert, places });
        }
        let mut next = ends;
        let (mut slots, mut place_of) = (vec![0; ids.len()], vec![0; ids.len()]);
        for (slot, id) in ids.iter().enumerate() {
            let place = &mut next[*id as usize];
            slots[*place] = slot as u32;
            place_of[slot] = *place as u32;
            *place += 1;
        }
        ByExpert { slots, place_of, group_of, groups }
    }
}
