//! Counts of one view, directly from the requests. A server computes them for views finer than the cells of a page.
//!
//! The requests of a file are in order. So a column of a figure over number or time is a range of them, found by
//! bisection; only their offsets are examined one by one. The two highest bits of an offset are the channel.

use super::CHANNELS;

/// Number of bits of the offset.
pub const OFFSET_BITS: u32 = 62;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;

/// Combine offset and channel in one number.
pub fn keyed(offset: u64, channel: u8) -> u64 {
    offset.min(OFFSET) | u64::from(channel) << OFFSET_BITS
}

/// View of `columns` × `rows` cells over offsets `low..high` [bytes].
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Lowest offset [bytes].
    pub low: u64,
    /// End of the offsets, exclusive [bytes].
    pub high: u64,
    /// Number of rows. The borders determine the columns.
    pub rows: usize,
}

/// Counts of one view: per column, per row from the bottom, per channel.
///
/// `borders` are the indices in `keys` at which columns begin, and the end of the last column: one more than columns.
/// At most `threads` threads run concurrently.
pub fn counted(keys: &[u64], borders: &[usize], view: View, threads: usize) -> Vec<u32> {
    let columns = borders.len().saturating_sub(1);
    let width = view.rows * CHANNELS;
    let mut counts = vec![0u32; columns * width];
    if columns == 0 || view.rows == 0 || view.high <= view.low {
        return counts;
    }
    let share = columns.div_ceil(threads.max(1));
    std::thread::scope(|scope| {
        let parts = counts.chunks_mut(share * width).enumerate();
        for (part, counts) in parts {
            let borders = &borders[part * share..];
            scope.spawn(move || {
                for (column, counts) in counts.chunks_mut(width).enumerate() {
                    let from = borders[column].min(keys.len());
                    let until = borders[column + 1].clamp(from, keys.len());
                    fill(&keys[from..until], view, counts);
                }
            });
        }
    });
    counts
}

fn fill(keys: &[u64], view: View, counts: &mut [u32]) {
    let span = view.high - view.low;
    // a multiplication instead of a division per request; rows stay exact below 2^32 cells
    let scale = view.rows as f64 / span as f64;
    for &key in keys {
        let from = (key & OFFSET).wrapping_sub(view.low);
        if from < span {
            let row = ((from as f64 * scale) as usize).min(view.rows - 1);
            counts[row * CHANNELS + ((key >> OFFSET_BITS) as usize).min(CHANNELS - 1)] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_of_the_view_is_in_one_cell() {
        let keys: Vec<u64> = (0..10_000u64)
            .map(|i| keyed((i * 7919) % 100_000, (i % 3) as u8))
            .collect();
        let borders: Vec<usize> = (0..=50).map(|c| c * 200).collect();
        let view = View {
            low: 0,
            high: 100_000,
            rows: 64,
        };
        for threads in [1, 2, 7] {
            let counts = counted(&keys, &borders, view, threads);
            assert_eq!(counts.iter().sum::<u32>(), 10_000);
            let reads: u32 = counts.chunks(3).map(|c| c[0]).sum();
            assert_eq!(reads, 3334);
        }
        let part = counted(&keys, &borders[10..=11], View { low: 500, ..view }, 2);
        let expected = keys[2000..2200]
            .iter()
            .filter(|&&k| k & OFFSET >= 500)
            .count();
        assert_eq!(part.iter().sum::<u32>() as usize, expected);
    }
}
