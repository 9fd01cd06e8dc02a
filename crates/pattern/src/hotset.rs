//! Re-access: how much goes to blocks seen before, and to how few of them.

use serde::Serialize;

/// At most about this many requests are looked at: of larger sets, all requests of a fair sample of blocks.
const LOOKED_AT: usize = 1 << 20;

/// How requests spread over blocks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Share of requests to a block already touched.
    pub reaccess_share: f64,
    /// Share of requests that go to the most used fifth of the touched blocks.
    pub top_fifth_share: f64,
    /// Slope of log(requests) against log(rank) over the blocks used more than once, negated; its 95 % half-width.
    pub zipf_exponent: f64,
    /// Half-width of the 95 % interval of the exponent.
    pub zipf_half_width: f64,
    /// Block size used [bytes].
    pub block_bytes: i64,
}

/// Counts requests by block of `block_bytes`.
pub fn spread(offsets: &[i64], block_bytes: i64) -> Spread {
    let block = block_bytes.max(1);
    let skip = (offsets.len() / LOOKED_AT + 1) as u64;
    let mut blocks: Vec<i64> = offsets
        .iter()
        .map(|&offset| offset.div_euclid(block))
        .filter(|&b| {
            skip == 1
                || (b as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & 0xffff < 0x10000 / skip
        })
        .collect();
    blocks.sort_unstable();
    let mut counts: Vec<u64> = blocks
        .chunk_by(|a, b| a == b)
        .map(|run| run.len() as u64)
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total = blocks.len().max(1) as f64;
    let fifth = counts.len().div_ceil(5);
    let (zipf_exponent, zipf_half_width) = zipf(&counts);
    Spread {
        reaccess_share: 1.0 - counts.len() as f64 / total,
        top_fifth_share: counts[..fifth].iter().sum::<u64>() as f64 / total,
        zipf_exponent,
        zipf_half_width,
        block_bytes: block,
    }
}

fn zipf(counts: &[u64]) -> (f64, f64) {
    let points: Vec<(f64, f64)> = counts
        .iter()
        .take_while(|&&count| count >= 4)
        .enumerate()
        .map(|(rank, &count)| (((rank + 1) as f64).ln(), (count as f64).ln()))
        .collect();
    let n = points.len() as f64;
    if points.len() < 3 {
        return (0.0, 0.0);
    }
    let (mx, my) = points
        .iter()
        .fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / n, sum.1 + p.1 / n));
    let (mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0);
    for (x, y) in &points {
        sxx += (x - mx).powi(2);
        sxy += (x - mx) * (y - my);
        syy += (y - my).powi(2);
    }
    let slope = sxy / sxx;
    let rest = (syy - slope * sxy).max(0.0);
    (-slope, 1.96 * (rest / (n - 2.0) / sxx).sqrt())
}
