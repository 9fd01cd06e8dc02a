//! Content-defined chunks by the crate `fastcdc`: Xia et al., "The Design of Fast Content-Defined Chunking for Data
//! Deduplication Based Storage Systems", IEEE TPDS 31 (2020).

use fastcdc::v2020::{cut, logarithm2, MASKS};

use crate::chunking::{Chunker, Sizes};

/// FastCDC with normalisation level 1, the default of the crate.
pub(crate) struct FastCdc {
    sizes: Sizes,
    /// Masks before and after the average size.
    strict: u64,
    loose: u64,
}

impl FastCdc {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let bits = logarithm2(sizes.avg as u32) as usize;
        FastCdc {
            sizes,
            strict: MASKS[bits + 1],
            loose: MASKS[bits - 1],
        }
    }
}

impl Chunker for FastCdc {
    fn most(&self) -> usize {
        self.sizes.max
    }

    fn cut(&self, data: &[u8]) -> usize {
        let Sizes { min, avg, max } = self.sizes;
        let (strict, loose) = (self.strict, self.loose);
        cut(data, min, avg, max, strict, loose, strict << 1, loose << 1).1
    }
}
