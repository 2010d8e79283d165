//! Chains on rows, products, and the products of experts.

use std::collections::HashMap;
use std::sync::Mutex;

use wootz_graph::{RunError, WeightId};

use super::arena::View;
use super::program::{ChainLink, Place, Product, RowOp};
use super::run::{Scratch, each_row};
use super::weights::{Matrix, Weights};
use crate::norm::NormParams;
use crate::pool::Pool;
use crate::{ActForm, Activations, CpuError, Isa, Linear, LinearSet, elementwise, norm};

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
    each_row(host, n, source.cols * (links.len() + writers.len()), |row, scratch| {
        // SAFETY: see `Host::view`.
        let mut at_hand: &[f32] = unsafe { host.view.f32(source, row, 1) };
        let Scratch { at_hand: a, next: b, .. } = scratch;
        for (i, link) in links.iter().enumerate() {
            let to = if i % 2 == 0 { &mut *a } else { &mut *b };
            to.resize(at_hand.len(), 0.0);
            apply(host, &link.op, row, at_hand, to)?;
            if let Some(out) = &link.out {
                // SAFETY: see `Host::view`.
                unsafe { host.view.f32_mut(out, row, 1) }.copy_from_slice(to);
            }
            // SAFETY: the buffer lives as long as the worker's scratch and is next written two links on, when
            // nothing reads it any more.
            at_hand = unsafe { std::slice::from_raw_parts(to.as_ptr(), to.len()) };
        }
        for writer in &writers {
            // SAFETY: this row is this worker's alone.
            unsafe { writer.write(row, at_hand) };
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
        RowOp::AddRow(summand) => elementwise::add(isa, x, summand, out),
        RowOp::Glu { activation, other: place, gate_is_other: false } => {
            elementwise::glu(isa, *activation, x, other(place), out)
        }
        RowOp::Glu { activation, other: place, gate_is_other: true } => {
            elementwise::glu(isa, *activation, other(place), x, out)
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

/// Multiplies each row's parts with the matrices of its experts.
#[allow(clippy::too_many_arguments)]
pub(super) fn experts(
    host: Host<'_>,
    matrices: &[std::sync::Arc<Matrix>],
    used: usize,
    x: &Place,
    ids: &[i32],
    out: &Place,
    activations: &mut ActivationPool,
    n: usize,
) -> Result<(), RunError> {
    let Some(first) = matrices.first() else { return Ok(()) };
    let (inner, rows) = (first.cols(), first.rows());
    let shared = x.cols == inner;
    let Some(acts) = activations.get_mut(&(first.form(), inner)) else {
        return Err(RunError::Plan("expert products without their activations".into()));
    };
    // SAFETY: see `Host::view`.
    let (x, out) = unsafe { (host.view.f32(x, 0, n), host.view.f32_mut(out, 0, n)) };
    let mut result = Vec::new();
    for (expert, matrix) in matrices.iter().enumerate() {
        let mine: Vec<usize> = (0..n * used).filter(|i| ids[*i] as usize == expert).collect();
        if mine.is_empty() {
            continue;
        }
        acts.set_tokens(mine.len())?;
        let writer = acts.rows_mut();
        for (token, slot) in mine.iter().enumerate() {
            let at = if shared { slot / used } else { *slot };
            // SAFETY: this thread alone writes.
            unsafe { writer.write(token, &x[at * inner..(at + 1) * inner]) };
        }
        result.resize(mine.len() * rows, 0.0);
        let linear = Linear { weights: matrix.weights(), out: &mut result, stride: rows };
        work(host.pool, vec![LinearSet::new(acts, [linear], host.pool.workers())?])?;
        for (row, slot) in result.chunks_exact(rows).zip(&mine) {
            out[slot * rows..(slot + 1) * rows].copy_from_slice(row);
        }
    }
    Ok(())
}
