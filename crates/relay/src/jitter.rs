//! Jitter by table: quantiles of a distribution with mean 0 and standard deviation 1.
//!
//! netem can use the same tables. Its entries end at four standard deviations: the tables are truncated there
//! and standardised again, so that mean and deviation match the request.

use crate::config::{Delay, Distribution};

/// Number of entries of a table.
pub const TABLE: usize = 4096;

const MOST: f64 = 3.999;

/// Quantiles of a distribution at (i + 1/2) / [`TABLE`], truncated at four standard deviations, with mean 0 and
/// standard deviation 1. None for distributions that need no table.
pub fn quantiles(distribution: Distribution) -> Option<Vec<f64>> {
    let inverse: fn(f64) -> f64 = match distribution {
        Distribution::Constant | Distribution::Uniform => return None,
        Distribution::Normal => normal,
        Distribution::Pareto => pareto,
    };
    let mut table: Vec<f64> = (0..TABLE)
        .map(|i| inverse((i as f64 + 0.5) / TABLE as f64))
        .collect();
    // truncation shifts mean and deviation, standardisation shifts the tails: 20 rounds converge
    for _ in 0..20 {
        for x in &mut table {
            *x = x.clamp(-MOST, MOST);
        }
        let n = TABLE as f64;
        let mean = table.iter().sum::<f64>() / n;
        let sd = (table.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        for x in &mut table {
            *x = (*x - mean) / sd;
        }
    }
    Some(table)
}

/// Quantile of the Pareto distribution with shape 3 and minimum 1, standardised.
fn pareto(u: f64) -> f64 {
    ((1.0 - u).powf(-1.0 / 3.0) - 1.5) / 0.75f64.sqrt()
}

/// Standard normal quantile, by bisection of the distribution function. Each table is computed once.
fn normal(u: f64) -> f64 {
    let (mut low, mut high) = (-8.0f64, 8.0f64);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if distribution_function(middle) < u {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// Standard normal distribution function: the series of Abramowitz and Stegun 26.2.10, exact to rounding here.
fn distribution_function(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut n = 1.0;
    while term.abs() > 1e-16 && n < 400.0 {
        term *= -x * x * (2.0 * n - 1.0) / (2.0 * n * (2.0 * n + 1.0));
        sum += term;
        n += 1.0;
    }
    0.5 + sum / (2.0 * std::f64::consts::PI).sqrt()
}

/// A delay with its quantile table.
#[derive(Debug, Clone, Default)]
pub struct Jitter {
    delay: Delay,
    table: Option<Vec<f64>>,
}

impl Jitter {
    /// Compute the table of a delay.
    pub fn new(delay: Delay) -> Self {
        let table = if delay.jitter_s > 0.0 {
            quantiles(delay.distribution)
        } else {
            None
        };
        Jitter { delay, table }
    }

    /// Delay in nanoseconds for a uniform draw `u` in (0, 1); never negative.
    pub fn draw_ns(&self, u: f64) -> u64 {
        let d = &self.delay;
        let s = match (&self.table, d.distribution) {
            (Some(table), _) => d.mean_s + d.jitter_s * table[(u * TABLE as f64) as usize % TABLE],
            (None, Distribution::Uniform) => d.mean_s + d.jitter_s * (2.0 * u - 1.0),
            (None, _) => d.mean_s,
        };
        (s.max(0.0) * 1e9).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(distribution: Distribution) -> (f64, f64, f64) {
        let jitter = Jitter::new(Delay {
            mean_s: 0.010,
            jitter_s: 0.002,
            distribution,
        });
        let n = 100_000;
        let seen: Vec<f64> = (0..n)
            .map(|i| jitter.draw_ns((f64::from(i) + 0.5) / f64::from(n)) as f64 * 1e-9)
            .collect();
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        let sd = (seen.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / seen.len() as f64).sqrt();
        (mean, sd, seen[n as usize / 2])
    }

    #[test]
    fn mean_and_deviation_match_the_configuration() {
        for (distribution, sd) in [
            (Distribution::Constant, 0.0),
            (Distribution::Uniform, 0.002 / 3f64.sqrt()),
            (Distribution::Normal, 0.002),
            (Distribution::Pareto, 0.002),
        ] {
            let (mean, deviation, median) = moments(distribution);
            assert!((mean - 0.010).abs() < 1e-5, "{distribution:?}: mean {mean}");
            assert!(
                (deviation - sd).abs() < 2e-5,
                "{distribution:?}: deviation {deviation}"
            );
            match distribution {
                Distribution::Pareto => assert!(median < 0.0097, "{median}"),
                _ => assert!((median - 0.010).abs() < 1e-5, "{median}"),
            }
        }
    }

    #[test]
    fn normal_quantiles_match_tables() {
        for (u, x) in [
            (0.5, 0.0),
            (0.975, 1.959_964),
            (0.01, -2.326_348),
            (0.9999, 3.719_016),
        ] {
            assert!((normal(u) - x).abs() < 1e-5, "{u}: {}", normal(u));
        }
    }

    #[test]
    fn a_delay_is_never_negative() {
        let jitter = Jitter::new(Delay {
            mean_s: 0.001,
            jitter_s: 0.001,
            distribution: Distribution::Normal,
        });
        assert_eq!(jitter.draw_ns(0.0001), 0);
    }
}
