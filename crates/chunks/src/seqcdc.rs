//! Content-defined chunks without a hash: a chunk ends after a strictly increasing sequence of bytes.
//!
//! The method is that of Udayashankar, Baba and Al-Kiswany, "SeqCDC: Hashless Content-Defined Chunking for Data
//! Deduplication" (Middleware 2024), with vector instructions as in arXiv 2505.21194. It starts after the minimum
//! size and compares adjacent bytes. `sequence` bytes in increasing order end the chunk. After `TRIGGER` decreasing
//! pairs, `skip` bytes are not examined: such content rarely has a boundary.
//!
//! The paper has a table of parameters for three average sizes. Here, `sequence` and `skip` follow from the sizes, so
//! that chunks of random bytes have about the requested average.

use crate::chunking::{Chunker, Sizes};

/// Decreasing pairs before a skip; the paper's value.
const TRIGGER: u32 = 50;
/// Random bytes that are examined before a skip: about half of the pairs decrease.
const EXAMINED: f64 = 2.0 * TRIGGER as f64;
/// Bytes of the longest sequence. Longer ones are too rare for the largest average.
const LONGEST: u32 = 9;
/// Least ratio of the bytes that are passed to those that are examined: more would be faster, and would miss more
/// boundaries after a change.
const LEAST_RATIO: f64 = 1.5;

/// Increasing and decreasing pairs of a window: bit i is the pair of its bytes i and i + 1.
#[derive(Clone, Copy)]
struct Pairs {
    increasing: u32,
    decreasing: u32,
}

/// Pairs of a window, which has one more byte.
const LANES: usize = 32;
const WINDOW: usize = LANES + 1;
/// Skips ahead for which memory is requested.
const AHEAD: usize = 6;

/// Length of the first chunk of data that is longer than the minimum and not longer than the maximum.
type Scan = fn(&SeqCdc, &[u8]) -> usize;

/// SeqCDC with the instructions of this processor.
pub(crate) struct SeqCdc {
    sizes: Sizes,
    /// Bytes in increasing order that end a chunk.
    sequence: u32,
    /// Bytes that are skipped.
    skip: usize,
    scan: Scan,
}

/// Mean number of random pairs until `sequence` bytes increase: 1 in n! orders of n bytes is increasing, and
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
        let ratio = |sequence| distance / expected_pairs(sequence);
        let sequence = (4..=LONGEST)
            .rev()
            .find(|&sequence| ratio(sequence) >= LEAST_RATIO)
            .unwrap_or(3);
        SeqCdc {
            sizes,
            sequence,
            skip: (EXAMINED * (ratio(sequence) - 1.0)).max(0.0) as usize,
            scan,
        }
    }

    /// Examines window by window, and the rest byte by byte.
    #[inline(always)]
    fn by_windows(&self, data: &[u8], pairs: impl Fn(&[u8]) -> Pairs) -> usize {
        let carried = self.sequence - 2; // pairs of earlier windows that a sequence may begin with
        let (mut at, mut fallen, mut before) = (self.sizes.min, 0, 0u64);
        let stride = self.skip + EXAMINED as usize;
        for ahead in 0..AHEAD {
            prefetch(data, at + ahead * stride);
        }
        while at + WINDOW <= data.len() {
            let window = pairs(&data[at..at + WINDOW]);
            let increasing = (u64::from(window.increasing) << carried) | before;
            let mut ends = increasing;
            for shift in 1..=carried {
                ends &= increasing >> shift;
            }
            // bit i of `ends`: pair i of the window completes a sequence
            let end = ends.trailing_zeros();
            let total = fallen + window.decreasing.count_ones();
            if total >= TRIGGER {
                let trigger = nth_bit(window.decreasing, TRIGGER - fallen);
                if trigger < end {
                    at += trigger as usize + 1 + self.skip;
                    (fallen, before) = (0, 0);
                    prefetch(data, at + AHEAD * stride);
                    continue;
                }
            }
            if end < LANES as u32 {
                return at + end as usize + 2;
            }
            fallen = total;
            before = increasing >> LANES;
            at += LANES;
        }
        let run = (before << (u64::BITS - carried)).leading_ones();
        self.by_bytes(data, at, run, fallen)
    }

    /// Examines the pairs from byte `at` on, after `run` increasing ones and `fallen` decreasing ones.
    fn by_bytes(&self, data: &[u8], mut at: usize, mut run: u32, mut fallen: u32) -> usize {
        while at + 1 < data.len() {
            let (this, next) = (data[at], data[at + 1]);
            at += 1;
            if next > this {
                run += 1;
                if run == self.sequence - 1 {
                    return at + 1;
                }
                continue;
            }
            run = 0;
            if next < this {
                fallen += 1;
                if fallen == TRIGGER {
                    at += self.skip;
                    fallen = 0;
                }
            }
        }
        data.len()
    }
}

/// Requests the bytes from `at` on that are examined at once. The processor does not foresee skips.
#[inline(always)]
fn prefetch(data: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(bytes) = data.get(at..at + EXAMINED as usize + LANES) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        for line in bytes.chunks(64) {
            // SAFETY: reads nothing; part of every x86_64 processor.
            unsafe { _mm_prefetch(line.as_ptr().cast(), _MM_HINT_T0) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, at);
}

/// Position of the n-th set bit, counted from 1, of a word that has so many.
fn nth_bit(mut word: u32, n: u32) -> u32 {
    for _ in 1..n {
        word &= word - 1;
    }
    word.trailing_zeros()
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn scalar(chunker: &SeqCdc, data: &[u8]) -> usize {
    chunker.by_bytes(data, chunker.sizes.min, 0, 0)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Pairs, SeqCdc, WINDOW};

    /// Only for processors with AVX2.
    pub(super) fn avx2(chunker: &SeqCdc, data: &[u8]) -> usize {
        #[target_feature(enable = "avx2,bmi1,popcnt")]
        fn scan(chunker: &SeqCdc, data: &[u8]) -> usize {
            chunker.by_windows(data, |window| {
                assert!(window.len() == WINDOW);
                // SAFETY: both loads are within the 33 bytes of the window.
                unsafe {
                    let this = _mm256_loadu_si256(window.as_ptr().cast());
                    let next = _mm256_loadu_si256(window.as_ptr().add(1).cast());
                    let larger = _mm256_max_epu8(this, next);
                    let mask = |equal| !_mm256_movemask_epi8(equal) as u32;
                    Pairs {
                        increasing: mask(_mm256_cmpeq_epi8(larger, this)),
                        decreasing: mask(_mm256_cmpeq_epi8(larger, next)),
                    }
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
                let larger = _mm_max_epu8(this, next);
                let mask = |equal| !_mm_movemask_epi8(equal) as u16;
                [
                    mask(_mm_cmpeq_epi8(larger, this)),
                    mask(_mm_cmpeq_epi8(larger, next)),
                ]
            }
        };
        chunker.by_windows(data, |window| {
            let (low, high) = (half(window, 0), half(window, 16));
            let both = |which: usize| u32::from(low[which]) | u32::from(high[which]) << 16;
            Pairs {
                increasing: both(0),
                decreasing: both(1),
            }
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
            // few values of a byte give long plateaus and sequences that cross windows
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
    fn a_sequence_ends_a_chunk_wherever_it_crosses_windows() {
        let sizes = Sizes {
            min: 64,
            avg: 300,
            max: 4096,
        };
        for begin in 64..200 {
            let mut data = vec![9u8; 1000];
            let sequence = SeqCdc::new(sizes).sequence as usize;
            for (value, byte) in data[begin..begin + sequence].iter_mut().enumerate() {
                *byte = 10 + value as u8;
            }
            // the plateau before it is its first, smaller byte
            for scan in scans() {
                assert_eq!(
                    SeqCdc::with(sizes, scan).cut(&data),
                    begin + sequence - 1 + usize::from(begin == 64),
                    "{begin}"
                );
            }
        }
    }
}
