//! Content-defined chunking with few hash computations: a chunk ends after a strictly increasing sequence of bytes.
//!
//! The method is that of Udayashankar, Baba and Al-Kiswany, "SeqCDC: Hashless Content-Defined Chunking for Data
//! Deduplication" (Middleware 2024), with vector instructions as in arXiv 2505.21194: adjacent bytes after the minimum
//! size are compared, and `sequence` bytes in increasing order end the chunk.
//!
//! SeqCDC skips bytes after many decreasing pairs, because short sequences alone would result in short chunks. A skip
//! also passes boundaries of the previous version: with chunks of 64 KiB, 8 of 9 bytes are not examined, and versions
//! with scattered changes need 12 % more space than with FastCDC. This implementation examines all bytes, which is fast
//! with vector instructions. It reaches the average size with the longest sequence that is frequent enough. A hash of
//! the last four bytes then selects a share of the sequences. So the hash is computed for one of thousands of bytes.

use crate::chunking::{Chunker, Sizes};

/// Length of the shortest and the longest sequence in bytes. Longer ones are too rare for the largest average.
const SHORTEST: u32 = 4;
const LONGEST: u32 = 10;
/// Fractional part of the golden ratio, times 2^32: multiplicative hashing, Knuth, TAOCP 3, 6.4.
const MULTIPLIER: u32 = 0x9E37_79B1;

/// Number of adjacent byte pairs that are compared at once, and the bytes of such a window.
const LANES: usize = 32;
const WINDOW: usize = LANES + 1;

/// Length of the first chunk of data that is longer than the minimum and not longer than the maximum.
type Scan = fn(&SeqCdc, &[u8]) -> usize;

/// SeqCDC with the instructions of this processor.
pub(crate) struct SeqCdc {
    sizes: Sizes,
    /// Number of bytes in increasing order that end a chunk.
    sequence: u32,
    /// Upper bound of the hash, exclusive: a sequence with a smaller hash ends a chunk.
    selected: u64,
    scan: Scan,
}

/// Expected number of random pairs until `sequence` bytes increase: 1 in n! orders of n bytes is increasing, and
/// sequences overlap little.
fn expected_pairs(sequence: u32) -> f64 {
    (1..=sequence).map(f64::from).product::<f64>() * (1.0 + 1.0 / f64::from(sequence))
}

fn fastest() -> Scan {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        x86::avx2
    } else {
        x86::sse2 // every x86_64 processor has it
    }
    #[cfg(not(target_arch = "x86_64"))]
    scalar
}

impl SeqCdc {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Self::with(sizes, fastest())
    }

    fn with(sizes: Sizes, scan: Scan) -> Self {
        let distance = (sizes.avg - sizes.min) as f64;
        let sequence = (SHORTEST..=LONGEST)
            .rev()
            .find(|&sequence| expected_pairs(sequence) <= distance)
            .unwrap_or(SHORTEST);
        let share = (expected_pairs(sequence) / distance).min(1.0);
        SeqCdc {
            sizes,
            sequence,
            selected: (share * (1u64 << u32::BITS) as f64) as u64,
            scan,
        }
    }

    /// True if the sequence before `end` is selected.
    #[inline(always)]
    fn selects(&self, data: &[u8], end: usize) -> bool {
        let mut last = [0; 4];
        last.copy_from_slice(&data[end - 4..end]);
        let mixed = u32::from_le_bytes(last).wrapping_mul(MULTIPLIER);
        // the low bits of a product depend on few bits of the bytes
        u64::from((mixed ^ mixed >> 15).wrapping_mul(MULTIPLIER)) < self.selected
    }

    /// Scan `data` window by window, and the remaining bytes one by one. `increasing` sets bit i if byte i + 1 of its
    /// window is larger than byte i.
    #[inline(always)]
    fn by_windows(&self, data: &[u8], increasing: impl Fn(&[u8]) -> u32) -> usize {
        let needed = self.sequence - 1;
        let carried = needed - 1; // pairs of the previous window with which a sequence may begin
        let (mut at, mut before) = (self.sizes.min, 0u64);
        while at + WINDOW <= data.len() {
            let pairs = u64::from(increasing(&data[at..at + WINDOW])) << carried | before;
            let (mut ends, mut length) = (pairs, 1);
            while length < needed {
                let more = length.min(needed - length);
                ends &= ends >> more;
                length += more;
            }
            // bit i of `ends`: pair i of the window completes a sequence
            while ends != 0 {
                let end = at + ends.trailing_zeros() as usize + 2;
                if self.selects(data, end) {
                    return end;
                }
                ends &= ends - 1;
            }
            before = pairs >> LANES;
            at += LANES;
        }
        let run = (before << (u64::BITS - carried)).leading_ones();
        self.by_bytes(data, at, run)
    }

    /// Scan the pairs from byte `at` on, after `run` increasing ones.
    fn by_bytes(&self, data: &[u8], at: usize, mut run: u32) -> usize {
        for end in at + 2..=data.len() {
            run = if data[end - 1] > data[end - 2] {
                run + 1
            } else {
                0
            };
            if run >= self.sequence - 1 && self.selects(data, end) {
                return end;
            }
        }
        data.len()
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn scalar(chunker: &SeqCdc, data: &[u8]) -> usize {
    chunker.by_bytes(data, chunker.sizes.min, 0)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{SeqCdc, WINDOW};

    /// Scan with AVX2. The processor must support it.
    pub(super) fn avx2(chunker: &SeqCdc, data: &[u8]) -> usize {
        #[target_feature(enable = "avx2,bmi1")]
        fn scan(chunker: &SeqCdc, data: &[u8]) -> usize {
            chunker.by_windows(data, |window| {
                assert!(window.len() == WINDOW);
                // SAFETY: both loads are within the 33 bytes of the window.
                unsafe {
                    let this = _mm256_loadu_si256(window.as_ptr().cast());
                    let next = _mm256_loadu_si256(window.as_ptr().add(1).cast());
                    let not_larger = _mm256_cmpeq_epi8(_mm256_max_epu8(this, next), this);
                    !_mm256_movemask_epi8(not_larger) as u32
                }
            })
        }
        // SAFETY: selected by `fastest` for processors that have these instructions.
        unsafe { scan(chunker, data) }
    }

    pub(super) fn sse2(chunker: &SeqCdc, data: &[u8]) -> usize {
        let half = |window: &[u8], at: usize| {
            assert!(at + 17 <= window.len());
            // SAFETY: both loads are within the window.
            unsafe {
                let this = _mm_loadu_si128(window.as_ptr().add(at).cast());
                let next = _mm_loadu_si128(window.as_ptr().add(at + 1).cast());
                let not_larger = _mm_cmpeq_epi8(_mm_max_epu8(this, next), this);
                !_mm_movemask_epi8(not_larger) as u16
            }
        };
        chunker.by_windows(data, |window| {
            u32::from(half(window, 0)) | u32::from(half(window, 16)) << 16
        })
    }
}

impl Chunker for SeqCdc {
    fn most(&self) -> usize {
        self.sizes.max
    }

    fn cut(&self, data: &[u8]) -> usize {
        let data = &data[..data.len().min(self.sizes.max)];
        if data.len() <= self.sizes.min {
            return data.len();
        }
        (self.scan)(self, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scans() -> Vec<Scan> {
        let mut scans: Vec<Scan> = vec![scalar, fastest()];
        #[cfg(target_arch = "x86_64")]
        scans.push(x86::sse2);
        scans
    }

    proptest! {
        #[test]
        fn vectors_and_bytes_give_the_same_cuts(
            data in prop::collection::vec(0u8..7, 0..6000),
            shift in 0u32..6,
            min in 64usize..700,
            more in 200usize..3000,
        ) {
            // bytes with few distinct values have long plateaus and sequences across windows
            let data: Vec<u8> = data.iter().map(|byte| byte << shift).collect();
            let sizes = Sizes { min, avg: min + more, max: min + 2 * more };
            let cuts: Vec<Vec<usize>> = scans().into_iter().map(|scan| {
                let chunker = SeqCdc::with(sizes, scan);
                let (mut rest, mut cuts) = (data.as_slice(), Vec::new());
                while !rest.is_empty() {
                    let cut = chunker.cut(rest);
                    cuts.push(cut);
                    rest = &rest[cut..];
                }
                cuts
            }).collect();
            prop_assert_eq!(&cuts[0], &cuts[1]);
            prop_assert_eq!(&cuts[0], &cuts[cuts.len() - 1]);
        }
    }

    #[test]
    fn sequences_across_windows_end_a_chunk() {
        let sizes = Sizes {
            min: 64,
            avg: 300,
            max: 4096,
        };
        for begin in 65..200 {
            let mut data = vec![9u8; 1000];
            let sequence = SeqCdc::with(sizes, scalar).sequence as usize;
            for (value, byte) in data[begin..begin + sequence].iter_mut().enumerate() {
                *byte = 10 + value as u8;
            }
            for scan in scans() {
                let mut chunker = SeqCdc::with(sizes, scan);
                chunker.selected = 1 << 32; // all
                                            // the plateau before it is its first, smaller byte
                assert_eq!(chunker.cut(&data), begin + sequence - 1, "{begin}");
                chunker.selected = 0; // none
                assert_eq!(chunker.cut(&data), data.len());
            }
        }
    }
}
