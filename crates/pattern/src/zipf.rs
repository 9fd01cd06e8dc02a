//! The exponent of a zipf law over blocks whose ranks nobody knows, from the requests that each block got.
//!
//! Ranking blocks by the very counts that are then fitted bends both ends of the line (Clauset, Shalizi, Newman, SIAM
//! Review 51, 2009; Piantadosi, Psychon. Bull. Rev. 21, 2014). So no block is given a rank here. Under the law, *n*
//! requests to *N* blocks, block *r* has a Poisson number with mean *λ<sub>r</sub>* ∝ *r<sup>−a</sup>*; *a* and
//! *N* are those for which two sums over the blocks are what they were: the blocks met at all, and a sum of *h*(count). *h* is
//! *c* ln *c* where all blocks are seen (it stands for the sufficient statistic Σ *c* ln *r* of the likelihood with known
//! ranks) and ln *c* where a share of them is sampled, which the busiest blocks being in it or not does not sway. The
//! interval is by the delta method, from the variance of both sums given *n* under the law with the fitted numbers.

use std::sync::OnceLock;

use crate::verdict::Z;

/// Fewer blocks than this are not fitted.
const ENOUGH: usize = 16;

/// The law that fits, and how well it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    pub exponent: f64,
    /// Of the 95 % interval of the exponent.
    pub half_width: f64,
}

/// From the requests of each block that was looked at, `share` of all, to which `requests` went in all. None if
/// there are too few blocks, or hardly any with two requests.
pub(crate) fn fit(counts: &[u64], requests: f64, share: f64) -> Option<Fit> {
    let again: u64 = counts.iter().map(|&count| count.saturating_sub(1)).sum();
    if counts.len() < ENOUGH || again < ENOUGH as u64 {
        return None;
    }
    let whole = share >= 1.0;
    let law = Law {
        moments: &moments()[usize::from(!whole)],
        whole,
        requests,
        share,
    };
    let met = counts.len() as f64;
    let sum: f64 = counts.iter().map(|&c| height(c as f64, whole)).sum();
    // ln N, for an exponent: the blocks met are as many as they were
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

fn height(count: f64, whole: bool) -> f64 {
    if whole {
        count * count.ln()
    } else {
        count.ln()
    }
}

/// What a zipf law leads one to expect.
struct Law<'a> {
    moments: &'a [Moments],
    whole: bool,
    requests: f64,
    share: f64,
}

/// Both sums: blocks met, and the sum of heights.
#[derive(Clone, Copy, Default)]
struct Sums {
    met: f64,
    high: f64,
}

impl Law<'_> {
    /// Gives each stretch of ranks as (blocks in it, mean requests of one).
    fn ranks(&self, exponent: f64, blocks: f64) -> Vec<(f64, f64)> {
        const GROWTH: f64 = 1.08;
        let mut ranks = Vec::with_capacity(160);
        let (mut first, mut all) = (1.0f64, 0.0);
        while first <= blocks {
            let end = (first + 1.0).max(first * GROWTH).min(blocks + 1.0);
            // one rank is itself; the middle of several is that of their logarithms
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

    /// The moments for a mean: from the table, beyond it by their expansions.
    fn at(&self, mean: f64) -> Moments {
        let (table, ln) = (self.moments, mean.ln());
        let place = (ln - LEAST_LN) / STEP_LN;
        if place >= (POINTS - 1) as f64 {
            let slope = ln + 1.0;
            return if self.whole {
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
        // all requests together are as many as they are
        vh -= with_h * with_h / self.requests;
        vm -= with_m * with_m / self.requests;
        c -= with_h * with_m / self.requests;
        let determinant = high_a * met_n - high_n * met_a;
        let (x, y) = (met_n / determinant, -high_n / determinant);
        let variance = x * x * vh + 2.0 * x * y * c + y * y * vm;
        (variance.is_finite() && variance > 0.0).then(|| variance.sqrt())
    }
}

/// Of a Poisson count: mean of its height, variance, covariance with the count and with its not being 0; as logarithms.
type Moments = [f64; 4];

const LEAST_LN: f64 = -9.0;
const POINTS: usize = 420;
const STEP_LN: f64 = 17.0 / (POINTS - 1) as f64;

fn moments() -> &'static [Vec<Moments>; 2] {
    static TABLES: OnceLock<[Vec<Moments>; 2]> = OnceLock::new();
    TABLES.get_or_init(|| {
        [true, false].map(|whole| {
            (0..POINTS)
                .map(|i| of_mean((LEAST_LN + i as f64 * STEP_LN).exp(), whole).map(f64::ln))
                .collect()
        })
    })
}

fn of_mean(mean: f64, whole: bool) -> Moments {
    let reach = 12.0 * mean.sqrt() + 30.0;
    let first = (mean - reach).max(0.0) as u64;
    let last = (mean + reach) as u64;
    // ln of the probability of 0, then from each count to the next
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
            height(count as f64, whole)
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

/// Where a monotone function is 0, by the Illinois method; the nearer end where it is not.
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
