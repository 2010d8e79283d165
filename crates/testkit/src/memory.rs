use std::io::{Error, ErrorKind};
use std::sync::Arc;

use wootz_graph::{WeightId, WeightInfo, WeightSource, WeightTable};
use wootz_quant::WeightType;

use crate::rng::Rng;

/// Weights in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryWeights {
    table: WeightTable,
    bytes: Vec<Vec<u8>>,
}

impl MemoryWeights {
    /// Adds a weight from its elements.
    ///
    /// # Panics
    /// The elements do not fill whole blocks of the type.
    pub fn add(&mut self, name: &str, ty: WeightType, cols: usize, elements: &[f32]) -> WeightId {
        self.add_experts(name, ty, cols, elements, 1)
    }

    /// Adds the matrices of several experts from their elements.
    ///
    /// # Panics
    /// The elements do not fill whole blocks of the type.
    pub fn add_experts(
        &mut self,
        name: &str,
        ty: WeightType,
        cols: usize,
        elements: &[f32],
        experts: u32,
    ) -> WeightId {
        self.push(name, ty, cols, elements.len(), encode(ty, elements), experts)
    }

    /// Adds a matrix of f32 elements as they are, also such as are no finite numbers.
    pub(crate) fn add_bits(&mut self, name: &str, cols: usize, elements: &[f32]) -> WeightId {
        let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.push(name, WeightType::F32, cols, elements.len(), bytes, 1)
    }

    fn push(
        &mut self,
        name: &str,
        ty: WeightType,
        cols: usize,
        elements: usize,
        bytes: Vec<u8>,
        experts: u32,
    ) -> WeightId {
        self.bytes.push(bytes);
        let rows = (elements / cols) as u64;
        self.table.push(WeightInfo { name: name.to_owned(), ty, rows, cols: cols as u64, experts })
    }

    /// Adds a matrix `[rows, cols]` of random elements of deviation `scale`.
    pub fn random(
        &mut self,
        rng: &mut Rng,
        name: &str,
        ty: WeightType,
        rows: usize,
        cols: usize,
        scale: f32,
    ) {
        let elements: Vec<f32> = (0..rows * cols).map(|_| rng.normal() * scale).collect();
        self.add(name, ty, cols, &elements);
    }

    /// Names, types and shapes.
    pub fn table(&self) -> Arc<WeightTable> {
        Arc::new(self.table.clone())
    }
}

impl WeightSource for MemoryWeights {
    fn read(&self, id: WeightId, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let all = &self.bytes[id.0 as usize];
        let part = usize::try_from(offset).ok().and_then(|o| all.get(o..)?.get(..buf.len()));
        buf.copy_from_slice(part.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn mapped(&self, id: WeightId) -> Option<&[u8]> {
        self.bytes.get(id.0 as usize).map(Vec::as_slice)
    }
}

/// Elements as blocks of a type; for types without an encoder, random blocks that decode to finite numbers.
pub(crate) fn encode(ty: WeightType, elements: &[f32]) -> Vec<u8> {
    assert!(elements.len().is_multiple_of(ty.block_elements()), "{} elements of {ty}", elements.len());
    let mut bytes = vec![0; elements.len() / ty.block_elements() * ty.block_bytes()];
    if ty.can_encode() {
        ty.encode(elements, &mut bytes).expect("finite elements in whole blocks");
        return bytes;
    }
    let mut rng = Rng::new(elements.len() as u64 + u64::from(ty.id()));
    let mut decoded = vec![0.0; ty.block_elements()];
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // Codebook types hold an f16 scale somewhere: keep the blocks whose elements are of ordinary size.
        loop {
            block.fill_with(|| rng.next_u64() as u8);
            ty.decode(block, &mut decoded).expect("one whole block");
            let largest = decoded.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            if (1e-3..4.0).contains(&largest) && decoded.iter().all(|x| x.is_finite()) {
                break;
            }
        }
    }
    bytes
}
