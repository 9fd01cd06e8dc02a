//! Counter-based random numbers: a pure function of key and counter, without state.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits so that every input bit flips each output bit about half of the time
/// (the finaliser of SplitMix64 with Stafford's constants, variant 13).
#[inline]
#[must_use]
pub fn mix64(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Random numbers of one request: the n-th is a pure function of (seed, op, offset, visit, n).
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    key: u64,
    taken: u64,
}

impl Draws {
    /// Numbers of request number `visit` with operation `op` (a small number) at `offset`.
    #[inline]
    #[must_use]
    pub fn keyed(seed: u64, op: u64, offset: u64, visit: u64) -> Self {
        let key = mix64(seed.wrapping_add(GOLDEN.wrapping_mul(op + 1)));
        let key = mix64(key ^ offset.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let key = mix64(
            key ^ visit
                .wrapping_mul(0xa076_1d64_78bd_642f)
                .wrapping_add(GOLDEN),
        );
        Draws { key, taken: 0 }
    }

    /// The next number, uniform in the open interval (0, 1).
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        self.taken += 1;
        let bits = mix64(self.key.wrapping_add(self.taken.wrapping_mul(GOLDEN)));
        ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_keys_give_uniform_independent_numbers() {
        let n = 100_000u64;
        let draw = |offset: u64, visit: u64| Draws::keyed(7, 0, offset, visit).uniform();
        let first: Vec<f64> = (0..n).map(|i| draw(i * 4096, 0)).collect();
        let second: Vec<f64> = (0..n).map(|i| draw(i * 4096, 1)).collect();
        let mean = first.iter().sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.004, "{mean}");
        let mut bins = [0f64; 64];
        for u in &first {
            bins[(u * 64.0) as usize] += 1.0;
        }
        let expected = n as f64 / 64.0;
        let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
        assert!((30.0..115.0).contains(&chi2), "{chi2}"); // 63 degrees of freedom, p within about 1e-4
        for (name, a, b) in [
            ("next offset", &first[..n as usize - 1], &first[1..]),
            ("next visit", &first[..], &second[..]),
        ] {
            let covariance: f64 = a
                .iter()
                .zip(b)
                .map(|(x, y)| (x - 0.5) * (y - 0.5))
                .sum::<f64>()
                / a.len() as f64;
            assert!((covariance * 12.0).abs() < 0.015, "{name}: {covariance}");
        }
    }
}
