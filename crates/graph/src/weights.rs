use std::collections::HashMap;

use wootz_quant::WeightType;

use crate::error::{GraphError, RunError};

/// One weight of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A weight's name, type and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightInfo {
    /// Tensor name in the file.
    pub name: String,
    /// Element type.
    pub ty: WeightType,
    /// Rows of all experts together: the outputs of a product, entries of an embedding, 1 for a vector.
    pub rows: u64,
    /// Columns: the inputs of a product, elements of a vector.
    pub cols: u64,
    /// Experts that the rows divide into; 1 for an ordinary matrix.
    pub experts: u32,
}

impl WeightInfo {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols as usize / self.ty.block_elements() * self.ty.block_bytes()
    }

    /// Bytes of the whole weight.
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes() as u64
    }

    /// Decodes whole blocks of the weight to f32.
    ///
    /// # Errors
    /// `out` has another length than the blocks have elements.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), RunError> {
        let decoded = self.ty.decode(bytes, out);
        decoded.map_err(|e| self.unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, e)))
    }

    fn unreadable(&self, source: std::io::Error) -> RunError {
        RunError::ReadWeight { name: self.name.clone(), source }
    }
}

/// What a model family asks of a file: names and shapes.
#[derive(Clone, Debug, Default)]
pub struct WeightSpec {
    entries: Vec<SpecEntry>,
}

/// One tensor that a model family asks for.
#[derive(Clone, Debug)]
pub struct SpecEntry {
    /// Tensor name.
    pub name: String,
    /// Rows, over all experts.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Experts.
    pub experts: u32,
    /// Whether the model works without it.
    pub optional: bool,
}

impl WeightSpec {
    /// Asks for a matrix `[rows, cols]`.
    pub fn matrix(&mut self, name: impl Into<String>, rows: u64, cols: u64) {
        self.entries.push(SpecEntry { name: name.into(), rows, cols, experts: 1, optional: false });
    }

    /// Asks for a vector of `cols` elements.
    pub fn vector(&mut self, name: impl Into<String>, cols: u64) {
        self.matrix(name, 1, cols);
    }

    /// Asks for one matrix `[rows, cols]` for each of `experts`.
    pub fn experts(&mut self, name: impl Into<String>, experts: u32, rows: u64, cols: u64) {
        let rows = rows * u64::from(experts);
        self.entries.push(SpecEntry { name: name.into(), rows, cols, experts, optional: false });
    }

    /// Makes the entry asked for last optional.
    pub fn optional(&mut self) {
        if let Some(last) = self.entries.last_mut() {
            last.optional = true;
        }
    }

    /// The entries, in the order they were asked for.
    pub fn entries(&self) -> &[SpecEntry] {
        &self.entries
    }
}

/// The weights that a model has, by id and by name.
#[derive(Clone, Debug, Default)]
pub struct WeightTable {
    infos: Vec<WeightInfo>,
    by_name: HashMap<String, WeightId>,
}

impl WeightTable {
    /// Matches what a family asks for with what a file has; `find` looks a tensor up by name.
    ///
    /// # Errors
    /// A required tensor is missing, or a tensor has another shape than asked for.
    pub fn resolve(
        spec: &WeightSpec,
        find: impl Fn(&str) -> Option<(WeightType, u64, u64)>,
    ) -> Result<WeightTable, GraphError> {
        let mut table = WeightTable::default();
        for entry in spec.entries() {
            let Some((ty, rows, cols)) = find(&entry.name) else {
                if entry.optional {
                    continue;
                }
                return Err(GraphError::MissingWeight { name: entry.name.clone() });
            };
            if (rows, cols) != (entry.rows, entry.cols) {
                return Err(GraphError::WeightShape {
                    name: entry.name.clone(),
                    found_rows: rows,
                    found_cols: cols,
                    rows: entry.rows,
                    cols: entry.cols,
                });
            }
            table.push(WeightInfo { name: entry.name.clone(), ty, rows, cols, experts: entry.experts });
        }
        Ok(table)
    }

    /// Adds a weight.
    pub fn push(&mut self, info: WeightInfo) -> WeightId {
        let id = WeightId(self.infos.len() as u32);
        self.by_name.insert(info.name.clone(), id);
        self.infos.push(info);
        id
    }

    /// A weight by name, if the model has it.
    pub fn find(&self, name: &str) -> Option<WeightId> {
        self.by_name.get(name).copied()
    }

    /// A weight by name.
    ///
    /// # Errors
    /// The model has no such weight.
    pub fn get(&self, name: &str) -> Result<WeightId, GraphError> {
        self.find(name).ok_or_else(|| GraphError::MissingWeight { name: name.to_owned() })
    }

    /// A weight's name, type and shape.
    pub fn info(&self, id: WeightId) -> &WeightInfo {
        &self.infos[id.0 as usize]
    }

    /// All weights with their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (WeightId, &WeightInfo)> {
        self.infos.iter().enumerate().map(|(i, info)| (WeightId(i as u32), info))
    }

    /// Fills `buf` with the bytes of a weight from `offset` on.
    ///
    /// # Errors
    /// The source cannot be read; the error names the tensor.
    pub fn read(
        &self,
        source: &dyn WeightSource,
        id: WeightId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), RunError> {
        source.read(id, offset, buf).map_err(|e| self.info(id).unreadable(e))
    }

    /// All elements of a weight.
    ///
    /// # Errors
    /// The source cannot be read; the error names the tensor.
    pub fn elements(&self, source: &dyn WeightSource, id: WeightId) -> Result<Vec<f32>, RunError> {
        let info = self.info(id);
        let mut bytes = vec![0; info.bytes() as usize];
        self.read(source, id, 0, &mut bytes)?;
        let mut out = vec![0.0; (info.rows * info.cols) as usize];
        info.decode(&bytes, &mut out)?;
        Ok(out)
    }

    /// Bytes of all weights together.
    pub fn total_bytes(&self) -> u64 {
        self.infos.iter().map(WeightInfo::bytes).sum()
    }
}

/// Where a backend gets the bytes of weights from.
pub trait WeightSource: Send + Sync {
    /// Fills `buf` with the bytes of weight `id` from `offset` on.
    ///
    /// # Errors
    /// The file cannot be read, or ends early.
    fn read(&self, id: WeightId, offset: u64, buf: &mut [u8]) -> std::io::Result<()>;

    /// The weight's bytes in a mapped file, where there is one.
    fn mapped(&self, id: WeightId) -> Option<&[u8]>;
}
