//! Builds [`WeightType`](crate::WeightType) from the list of type files, and its public methods.

use crate::block::Info;
use crate::{Layout, QuantError, Unpacked, WeightType};

/// Declares a module and a variant for each `module: NAME` line, in the order of their ids.
macro_rules! quants {
    ($($module:ident: $variant:ident,)*) => {
        $(pub mod $module;)*

        /// A tensor element type of GGUF, plain or block-quantised.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum WeightType { $($variant,)* }

        impl WeightType {
            /// Every type, in the order of their ids.
            pub const ALL: &'static [WeightType] = &[$(WeightType::$variant,)*];

            /// The customary name, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(WeightType::$variant => stringify!($variant),)* }
            }

            pub(crate) const fn info(self) -> &'static crate::block::Info {
                match self { $(WeightType::$variant => &$module::INFO,)* }
            }
        }
    };
}
pub(crate) use quants;

impl WeightType {
    /// The type with this id in a GGUF tensor directory.
    pub const fn from_id(id: u32) -> Option<WeightType> {
        let mut i = 0;
        while i < Self::ALL.len() {
            if Self::ALL[i].id() == id {
                return Some(Self::ALL[i]);
            }
            i += 1;
        }
        None
    }

    /// The type with this customary name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<WeightType> {
        Self::ALL.iter().copied().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// The id in a GGUF tensor directory.
    pub const fn id(self) -> u32 {
        self.info().id
    }

    /// Elements in one block (1 for plain types).
    pub const fn block_elements(self) -> usize {
        self.info().elements
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.info().bytes
    }

    /// Bytes of a row of `cols` elements; `None` where `cols` is no multiple of the block or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if cols.is_multiple_of(self.block_elements()) {
            (cols / self.block_elements()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// Whether [`encode`](Self::encode) knows this type.
    pub const fn can_encode(self) -> bool {
        self.info().encode.is_some()
    }

    /// How codes and scales give values; `None` for plain types.
    pub const fn layout(self) -> Option<&'static Layout> {
        self.info().layout.as_ref()
    }

    /// Writes the values of `src`, a whole number of blocks, to `dst`.
    ///
    /// # Errors
    /// `src` holds a partial block, or `dst` another number of elements than `src`.
    pub fn decode(self, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
        let elements = self.elements_in(src)?;
        self.expect("elements", elements, dst.len())?;
        (self.info().decode)(src, dst);
        Ok(())
    }

    /// Writes the blocks that hold `src`, a whole number of blocks, to `dst`.
    ///
    /// The result depends on `src` alone. Types whose files hold integers round to the nearest one.
    ///
    /// # Errors
    /// The type has no encoder, a length does not fit, or a value is not finite or too large for the type.
    pub fn encode(self, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
        let Info { elements: block, encode: Some(encode), .. } = *self.info() else {
            return Err(QuantError::NoEncoder { ty: self });
        };
        let Some(bytes) = self.row_bytes(src.len()) else {
            return Err(QuantError::PartialElements { ty: self, elements: src.len(), block });
        };
        self.expect("bytes", bytes, dst.len())?;
        if let Some(index) = src.iter().position(|x| !x.is_finite()) {
            return Err(QuantError::NotFinite { ty: self, index, value: src[index] });
        }
        encode(src, dst).map_err(|index| QuantError::Range { ty: self, index })
    }

    /// The sum of `w[i] * x[i]` over the decoded weights, with products and sums in f64, in the order of the
    /// elements, rounded to f32 once at the end.
    ///
    /// # Errors
    /// `w` holds a partial block, or `x` another number of elements than `w`.
    pub fn dot(self, w: &[u8], x: &[f32]) -> Result<f32, QuantError> {
        let elements = self.elements_in(w)?;
        self.expect("elements", elements, x.len())?;
        let Info { elements: block, bytes, decode, .. } = *self.info();
        // Any whole number of blocks of each type.
        let mut values = [0.0; 256];
        let step = values.len() / block;
        let mut sum = 0.0;
        for (w, x) in w.chunks(step * bytes).zip(x.chunks(step * block)) {
            decode(w, &mut values[..x.len()]);
            for (&v, &x) in values.iter().zip(x) {
                sum += f64::from(v) * f64::from(x);
            }
        }
        Ok(sum as f32)
    }

    /// Takes one block apart into codes, scales and minimums; see [`layout`](Self::layout).
    ///
    /// # Errors
    /// The type is plain, or `block` has another length than one block.
    pub fn unpack(self, block: &[u8], out: &mut Unpacked) -> Result<(), QuantError> {
        let Info { bytes, unpack: Some(unpack), .. } = *self.info() else {
            return Err(QuantError::Plain { ty: self });
        };
        self.expect("bytes", bytes, block.len())?;
        unpack(block, out);
        Ok(())
    }

    fn elements_in(self, src: &[u8]) -> Result<usize, QuantError> {
        let block = self.block_bytes();
        if !src.len().is_multiple_of(block) {
            return Err(QuantError::PartialBlock { ty: self, bytes: src.len(), block });
        }
        // Saturation cannot reach a slice's length, so the comparison with it fails as it should.
        Ok((src.len() / block).saturating_mul(self.block_elements()))
    }

    fn expect(self, unit: &'static str, expected: usize, found: usize) -> Result<(), QuantError> {
        if expected == found { Ok(()) } else { Err(QuantError::Length { ty: self, unit, expected, found }) }
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
