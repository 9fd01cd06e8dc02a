//! Exponent of a zipf law over blocks with unknown ranks, from the number of requests of each block.
//!
//! Ranking blocks by the counts that are then fitted biases both ends of the line (Clauset, Shalizi, Newman, SIAM
//! Review 51, 2009; Piantadosi, Psychon. Bull. Rev. 21, 2014). So blocks are not ranked here. Under the law, with *n*
//! requests to *N* blocks, block *r* has a Poisson number of requests with mean *λ<sub>r</sub>* ∝ *r<sup>−a</sup>*. The
//! fit chooses *a* and *N* so that two sums over the blocks match the observation: the number of accessed blocks, and
//! the sum of *h*(count). If all blocks are observed, *h* is *c* ln *c*, which replaces the sufficient statistic Σ *c*
//! ln *r* of the likelihood with known ranks. If a share of them is sampled, *h* is ln *c*, which depends little on the
//! presence of the busiest blocks in the sample. The interval is by the delta method, from the variance of both sums
//! given *n* under the fitted law.

use std::sync::OnceLock;

use crate::verdict::Z;

/// Minimum number of blocks for a fit.
const ENOUGH: usize = 16;

/// Fitted law and its uncertainty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    pub exponent: f64,
    /// Half-width of the 95 % interval of the exponent.
    pub half_width: f64,
}

/// Fit a law to the requests of each examined block. The blocks are `share` of all, and `requests` went to all of them.
/// Return None if there are too few blocks or too few repeated requests.
pub(crate) fn fit(counts: &[u64], requests: f64, share: f64) -> Option<Fit> {
    let reaccesses: u64 = counts.iter().map(|&count| count.saturating_sub(1)).sum();
    if counts.len() < ENOUGH || reaccesses < ENOUGH as u64 {
        return None;
    }
    let complete = share >= 1.0;
    let law = Law {
        moments: &moments()[usize::from(!complete)],
        complete,
        requests,
        share,
    };
    let met = counts.len() as f64;
    let sum: f64 = counts.iter().map(|&c| height(c as f64, complete)).sum();
    // ln N for an exponent: the expected number of accessed blocks equals the observed one
    let blocks = |exponent: f64| {
        let least = (met / share).ln();
        root(least, least + 7.0, |ln| {
            law.sums(exponent, ln.exp()).met - met
        })
    };
    let exponent = root(0.0, MOST, |a| law.sums(a, blocks(a).exp()).high - sum);
    let ln_blocks = blocks(exponent);
    let half_width = Z * law.deviation(exponent, ln_blocks)?;
    Some(Fit {
        exponent,
        half_width,
    })
}

const MOST: f64 = 4.0;

fn height(count: f64, complete: bool) -> f64 {
    if complete {
        count * count.ln()
    } else {
        count.ln()
    }
}

/// Expectations under a zipf law.
struct Law<'a> {
    moments: &'a [Moments],
    complete: bool,
    requests: f64,
    share: f64,
}

/// Both sums: accessed blocks, and the sum of heights.
#[derive(Clone, Copy, Default)]
struct Sums {
    met: f64,
    high: f64,
}

impl Law<'_> {
    /// Groups of ranks as (number of blocks, mean requests of each).
    fn ranks(&self, exponent: f64, blocks: f64) -> Vec<(f64, f64)> {
        const GROWTH: f64 = 1.08;
        let mut ranks = Vec::with_capacity(160);
        let (mut first, mut all) = (1.0f64, 0.0);
        while first <= blocks {
            let end = (first + 1.0).max(first * GROWTH).min(blocks + 1.0);
            // a single rank is exact; the middle of several is the geometric mean
            let middle = if first < 13.0 {
                first
            } else {
                ((first - 0.5) * (end - 0.5)).sqrt()
            };
            let weight = middle.powf(-exponent);
            ranks.push((end - first, weight));
            all += (end - first) * weight;
            first = end;
        }
        for (_, weight) in &mut ranks {
            *weight *= self.requests / all;
        }
        ranks
    }

    fn sums(&self, exponent: f64, blocks: f64) -> Sums {
        let mut sums = Sums::default();
        for (number, mean) in self.ranks(exponent, blocks) {
            sums.met += number * -(-mean).exp_m1();
            sums.high += number * self.at(mean)[0];
        }
        Sums {
            met: self.share * sums.met,
            high: self.share * sums.high,
        }
    }

    /// Moments for a mean: from the table, above its range by their expansions.
    fn at(&self, mean: f64) -> Moments {
        let (table, ln) = (self.moments, mean.ln());
        let place = (ln - LEAST_LN) / STEP_LN;
        if place >= (POINTS - 1) as f64 {
            let slope = ln + 1.0;
            return if self.complete {
                [mean * ln + 0.5, mean * slope * slope, mean * slope, 0.0]
            } else {
                [ln - 0.5 / mean, 1.0 / mean, 1.0, 0.0]
            };
        }
        let low = (place.max(0.0) as usize).min(POINTS - 2);
        let part = place - low as f64;
        std::array::from_fn(|i| {
            (table[low][i] + part * (table[low + 1][i] - table[low][i]))
                .max(-700.0)
                .exp()
        })
    }

    /// Standard deviation of the exponent: J⁻¹ V J⁻ᵀ of both sums.
    fn deviation(&self, exponent: f64, ln_blocks: f64) -> Option<f64> {
        const STEP: f64 = 1e-3;
        let slope = |a: f64, ln: f64| {
            let more = self.sums(exponent + a, (ln_blocks + ln).exp());
            let less = self.sums(exponent - a, (ln_blocks - ln).exp());
            (
                (more.high - less.high) / (2.0 * STEP),
                (more.met - less.met) / (2.0 * STEP),
            )
        };
        let ((high_a, met_a), (high_n, met_n)) = (slope(STEP, 0.0), slope(0.0, STEP));
        let (p, outside) = (self.share, self.share * (1.0 - self.share));
        let (mut vh, mut vm, mut c, mut with_h, mut with_m) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (number, mean) in self.ranks(exponent, ln_blocks.exp()) {
            let [h, var, cov_requests, cov_met] = self.at(mean);
            let (none, met) = ((-mean).exp(), -(-mean).exp_m1());
            vh += number * (p * var + outside * h * h);
            vm += number * (p * met * none + outside * met * met);
            c += number * (p * cov_met + outside * h * met);
            with_h += number * p * cov_requests;
            with_m += number * p * mean * none;
        }
        // the total number of requests is fixed
        vh -= with_h * with_h / self.requests;
        vm -= with_m * with_m / self.requests;
        c -= with_h * with_m / self.requests;
        let determinant = high_a * met_n - high_n * met_a;
        let (x, y) = (met_n / determinant, -high_n / determinant);
        let variance = x * x * vh + 2.0 * x * y * c + y * y * vm;
        (variance.is_finite() && variance > 0.0).then(|| variance.sqrt())
    }
}

/// Moments of a Poisson count: mean of its height, its variance, its covariance with the count and with count > 0; as
/// logarithms.
type Moments = [f64; 4];

const LEAST_LN: f64 = -9.0;
const POINTS: usize = 420;
const STEP_LN: f64 = 17.0 / (POINTS - 1) as f64;

fn moments() -> &'static [Vec<Moments>; 2] {
    static TABLES: OnceLock<[Vec<Moments>; 2]> = OnceLock::new();
    TABLES.get_or_init(|| {
        [true, false].map(|complete| {
            (0..POINTS)
                .map(|i| of_mean((LEAST_LN + i as f64 * STEP_LN).exp(), complete).map(f64::ln))
                .collect()
        })
    })
}

fn of_mean(mean: f64, complete: bool) -> Moments {
    let reach = 12.0 * mean.sqrt() + 30.0;
    let first = (mean - reach).max(0.0) as u64;
    let last = (mean + reach) as u64;
    // ln of the probability of 0, then of each next count
    let mut ln = -mean;
    for count in 1..=first {
        ln += (mean / count as f64).ln();
    }
    let mut terms = Vec::with_capacity((last - first) as usize + 1);
    for count in first..=last {
        if count > first {
            ln += (mean / count as f64).ln();
        }
        let height = if count > 1 {
            height(count as f64, complete)
        } else {
            0.0
        };
        terms.push((ln.exp(), height, count as f64));
    }
    let h: f64 = terms.iter().map(|t| t.0 * t.1).sum();
    let var = terms.iter().map(|t| t.0 * (t.1 - h).powi(2)).sum();
    let cov = terms.iter().map(|t| t.0 * (t.1 - h) * (t.2 - mean)).sum();
    [h, var, cov, h * (-mean).exp()]
}

/// Root of a monotone function by the Illinois method, or the nearer end if there is none.
fn root(low: f64, high: f64, f: impl Fn(f64) -> f64) -> f64 {
    let (mut a, mut b) = (low, high);
    let (mut fa, mut fb) = (f(a), f(b));
    if fa == 0.0 || fa.signum() == fb.signum() {
        return if fa.abs() <= fb.abs() { a } else { b };
    }
    for _ in 0..60 {
        let mut x = b - fb * (b - a) / (fb - fa);
        if !(x > a.min(b) && x < a.max(b)) {
            x = (a + b) / 2.0;
        }
        let fx = f(x);
        if fx == 0.0 {
            return x;
        }
        if fx.signum() == fb.signum() {
            fa /= 2.0;
        } else {
            a = b;
            fa = fb;
        }
        (b, fb) = (x, fx);
        if (b - a).abs() < 1e-7 || fx.abs() < 1e-9 * (1.0 + fx.abs()) {
            break;
        }
    }
    b
}
