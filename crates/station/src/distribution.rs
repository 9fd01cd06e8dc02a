//! Distributions of times in seconds: parameters in a profile, moments, quantiles and random draws.

use serde::{Deserialize, Serialize};

use crate::normal::{normal_cdf, normal_density, normal_quantile};
use crate::random::Draws;

/// A distribution of times of at least zero seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Constant time.
    Constant {
        /// Value in seconds.
        value_s: f64,
    },
    /// Uniform between two bounds.
    Uniform {
        /// Lower bound in seconds.
        low_s: f64,
        /// Upper bound in seconds.
        high_s: f64,
    },
    /// Exponential, memoryless.
    Exponential {
        /// Mean in seconds.
        mean_s: f64,
    },
    /// Normal, truncated to an interval. Mean and standard deviation are those before truncation.
    TruncatedNormal {
        /// Mean before truncation, seconds.
        mean_s: f64,
        /// Standard deviation before truncation, seconds.
        sd_s: f64,
        /// Lower bound, seconds.
        #[serde(default)]
        low_s: f64,
        /// Upper bound, seconds; unbounded if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        high_s: Option<f64>,
    },
    /// Lognormal: the logarithm is normal.
    Lognormal {
        /// Mean of the time itself (not of its logarithm), seconds.
        mean_s: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Piecewise linear between measured quantiles.
    Empirical {
        /// Pairs (probability, seconds), the first at probability 0, the last at 1, both columns rising.
        quantiles: Vec<(f64, f64)>,
    },
    /// Mixture of several distributions, by weight.
    Mixture {
        /// Components; their weights need not add up to one.
        parts: Vec<Part>,
    },
    /// Sum of several independent times.
    Sum {
        /// Summands.
        parts: Vec<Distribution>,
    },
}

/// One part of a mixture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Weight relative to the other components.
    pub weight: f64,
    /// Distribution of the component.
    pub of: Distribution,
}

fn at_least_zero(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{name} is {value}; a finite number of at least 0 is expected"
        ))
    }
}

fn above_zero(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{name} is {value}; a finite number above 0 is expected"
        ))
    }
}

/// Number of points by which a part of a sum is approximated for the numerical convolution.
const CONVOLUTION_POINTS: usize = 400;

impl Distribution {
    /// Check the numbers.
    ///
    /// # Errors
    /// The first invalid number, as `where: value found; value expected`.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Distribution::Constant { value_s } => at_least_zero("value_s", *value_s),
            Distribution::Uniform { low_s, high_s } => {
                at_least_zero("low_s", *low_s)?;
                at_least_zero("high_s", *high_s)?;
                if low_s > high_s {
                    return Err(format!("low_s {low_s} is above high_s {high_s}"));
                }
                Ok(())
            }
            Distribution::Exponential { mean_s } => above_zero("mean_s", *mean_s),
            Distribution::TruncatedNormal {
                mean_s,
                sd_s,
                low_s,
                high_s,
            } => {
                at_least_zero("mean_s", *mean_s)?;
                above_zero("sd_s", *sd_s)?;
                at_least_zero("low_s", *low_s)?;
                if let Some(high_s) = high_s {
                    above_zero("high_s", *high_s)?;
                    if low_s >= high_s {
                        return Err(format!("low_s {low_s} is not below high_s {high_s}"));
                    }
                }
                let (below, above) = cut(*mean_s, *sd_s, *low_s, *high_s);
                if above - below < 1e-9 {
                    return Err(format!(
                        "the interval from low_s {low_s} keeps less than 1e-9 of the normal distribution"
                    ));
                }
                Ok(())
            }
            Distribution::Lognormal { mean_s, sigma } => {
                above_zero("mean_s", *mean_s)?;
                at_least_zero("sigma", *sigma)?;
                if *sigma > 10.0 {
                    return Err(format!("sigma is {sigma}; at most 10 is expected"));
                }
                Ok(())
            }
            Distribution::Empirical { quantiles } => {
                if quantiles.len() < 2 {
                    return Err(format!(
                        "quantiles has {} pairs; at least 2 are expected",
                        quantiles.len()
                    ));
                }
                for (i, (p, s)) in quantiles.iter().enumerate() {
                    at_least_zero(&format!("quantiles[{i}] probability"), *p)?;
                    at_least_zero(&format!("quantiles[{i}] seconds"), *s)?;
                    if i > 0 && (*p <= quantiles[i - 1].0 || *s < quantiles[i - 1].1) {
                        return Err(format!(
                            "quantiles[{i}] ({p}, {s}) does not rise after ({}, {}); sort them",
                            quantiles[i - 1].0,
                            quantiles[i - 1].1
                        ));
                    }
                }
                let (first, last) = (quantiles[0].0, quantiles[quantiles.len() - 1].0);
                if first != 0.0 || last != 1.0 {
                    return Err(format!(
                        "quantiles run from probability {first} to {last}; 0 to 1 is expected"
                    ));
                }
                Ok(())
            }
            Distribution::Mixture { parts } => {
                if parts.is_empty() {
                    return Err("parts is empty; at least one is expected".into());
                }
                for (i, part) in parts.iter().enumerate() {
                    at_least_zero(&format!("parts[{i}].weight"), part.weight)?;
                    part.of
                        .validate()
                        .map_err(|e| format!("parts[{i}].of.{e}"))?;
                }
                above_zero("the sum of weights", parts.iter().map(|p| p.weight).sum())
            }
            Distribution::Sum { parts } => {
                if parts.is_empty() {
                    return Err("parts is empty; at least one is expected".into());
                }
                for (i, part) in parts.iter().enumerate() {
                    part.validate().map_err(|e| format!("parts[{i}].{e}"))?;
                }
                Ok(())
            }
        }
    }

    /// The distribution with all times multiplied by `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Distribution {
        match self {
            Distribution::Constant { value_s } => Distribution::Constant {
                value_s: value_s * factor,
            },
            Distribution::Uniform { low_s, high_s } => Distribution::Uniform {
                low_s: low_s * factor,
                high_s: high_s * factor,
            },
            Distribution::Exponential { mean_s } => Distribution::Exponential {
                mean_s: mean_s * factor,
            },
            Distribution::TruncatedNormal {
                mean_s,
                sd_s,
                low_s,
                high_s,
            } => Distribution::TruncatedNormal {
                mean_s: mean_s * factor,
                sd_s: sd_s * factor,
                low_s: low_s * factor,
                high_s: high_s.map(|h| h * factor),
            },
            Distribution::Lognormal { mean_s, sigma } => Distribution::Lognormal {
                mean_s: mean_s * factor,
                sigma: *sigma,
            },
            Distribution::Empirical { quantiles } => Distribution::Empirical {
                quantiles: quantiles.iter().map(|(p, s)| (*p, s * factor)).collect(),
            },
            Distribution::Mixture { parts } => Distribution::Mixture {
                parts: parts
                    .iter()
                    .map(|p| Part {
                        weight: p.weight,
                        of: p.of.scaled(factor),
                    })
                    .collect(),
            },
            Distribution::Sum { parts } => Distribution::Sum {
                parts: parts.iter().map(|p| p.scaled(factor)).collect(),
            },
        }
    }

    /// Mean in seconds, exact.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        match self {
            Distribution::Constant { value_s } => *value_s,
            Distribution::Uniform { low_s, high_s } => (low_s + high_s) / 2.0,
            Distribution::Exponential { mean_s } | Distribution::Lognormal { mean_s, .. } => {
                *mean_s
            }
            Distribution::TruncatedNormal {
                mean_s,
                sd_s,
                low_s,
                high_s,
            } => {
                let (below, above) = cut(*mean_s, *sd_s, *low_s, *high_s);
                let low = (low_s - mean_s) / sd_s;
                let high = high_s.map_or(f64::INFINITY, |h| (h - mean_s) / sd_s);
                let at_high = if high.is_finite() {
                    normal_density(high)
                } else {
                    0.0
                };
                mean_s + sd_s * (normal_density(low) - at_high) / (above - below)
            }
            Distribution::Empirical { quantiles } => quantiles
                .windows(2)
                .map(|w| (w[1].0 - w[0].0) * (w[0].1 + w[1].1) / 2.0)
                .sum(),
            Distribution::Mixture { parts } => {
                let total: f64 = parts.iter().map(|p| p.weight).sum();
                parts.iter().map(|p| p.weight / total * p.of.mean_s()).sum()
            }
            Distribution::Sum { parts } => parts.iter().map(Distribution::mean_s).sum(),
        }
    }

    /// Quantile in seconds at `p` in (0, 1). Exact, except for mixtures and sums, which some hundreds of
    /// equally likely points approximate.
    #[must_use]
    pub fn quantile_s(&self, p: f64) -> f64 {
        match self {
            Distribution::Constant { value_s } => *value_s,
            Distribution::Uniform { low_s, high_s } => low_s + p * (high_s - low_s),
            Distribution::Exponential { mean_s } => -mean_s * (-p).ln_1p(),
            Distribution::TruncatedNormal {
                mean_s,
                sd_s,
                low_s,
                high_s,
            } => {
                let (below, above) = cut(*mean_s, *sd_s, *low_s, *high_s);
                let z = normal_quantile((below + p * (above - below)).clamp(1e-300, 1.0 - 1e-16));
                (mean_s + sd_s * z).clamp(*low_s, high_s.unwrap_or(f64::INFINITY))
            }
            Distribution::Lognormal { mean_s, sigma } => {
                (mean_s.ln() - sigma * sigma / 2.0 + sigma * normal_quantile(p)).exp()
            }
            Distribution::Empirical { quantiles } => interpolate(quantiles, p),
            Distribution::Mixture { .. } | Distribution::Sum { .. } => {
                let points = self.points();
                weighted_quantile(&points, p)
            }
        }
    }

    /// Like [`Distribution::quantile_s`], for several probabilities, at the cost of one for mixtures and sums.
    #[must_use]
    pub fn quantiles_s(&self, p: &[f64]) -> Vec<f64> {
        match self {
            Distribution::Mixture { .. } | Distribution::Sum { .. } => {
                let points = self.points();
                p.iter().map(|p| weighted_quantile(&points, *p)).collect()
            }
            simple => p.iter().map(|p| simple.quantile_s(*p)).collect(),
        }
    }

    /// Points (seconds, weight) that approximate the distribution, sorted by time.
    fn points(&self) -> Vec<(f64, f64)> {
        let n = CONVOLUTION_POINTS;
        match self {
            Distribution::Constant { value_s } => vec![(*value_s, 1.0)],
            Distribution::Sum { parts } => {
                let mut sum = vec![(0.0, 1.0)];
                for part in parts {
                    let added = part.points();
                    let mut all: Vec<(f64, f64)> = sum
                        .iter()
                        .flat_map(|(a, wa)| added.iter().map(move |(b, wb)| (a + b, wa * wb)))
                        .collect();
                    all.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
                    sum = if all.len() > 4 * n {
                        thinned(&all, 4 * n)
                    } else {
                        all
                    };
                }
                sum
            }
            Distribution::Mixture { parts } => {
                let total: f64 = parts.iter().map(|p| p.weight).sum();
                let mut all = Vec::new();
                for part in parts.iter().filter(|p| p.weight > 0.0) {
                    let weight = part.weight / total;
                    all.extend(part.of.points().into_iter().map(|(s, w)| (s, w * weight)));
                }
                all.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
                all
            }
            simple => (0..n)
                .map(|i| {
                    (
                        simple.quantile_s((i as f64 + 0.5) / n as f64),
                        1.0 / n as f64,
                    )
                })
                .collect(),
        }
    }

    /// Compile the distribution for fast draws in nanoseconds.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        Sampler(self.drawn())
    }

    fn drawn(&self) -> Drawn {
        const NS: f64 = 1e9;
        match self {
            Distribution::Constant { value_s } => Drawn::Constant(value_s * NS),
            Distribution::Uniform { low_s, high_s } => Drawn::Uniform {
                low: low_s * NS,
                width: (high_s - low_s) * NS,
            },
            Distribution::Exponential { mean_s } => Drawn::Exponential { mean: mean_s * NS },
            Distribution::TruncatedNormal {
                mean_s,
                sd_s,
                low_s,
                high_s,
            } => {
                let (below, above) = cut(*mean_s, *sd_s, *low_s, *high_s);
                Drawn::TruncatedNormal {
                    mean: mean_s * NS,
                    sd: sd_s * NS,
                    below,
                    mass: above - below,
                    low: low_s * NS,
                    high: high_s.unwrap_or(f64::INFINITY) * NS,
                }
            }
            Distribution::Lognormal { mean_s, sigma } => Drawn::Lognormal {
                mu: (mean_s * NS).ln() - sigma * sigma / 2.0,
                sigma: *sigma,
            },
            Distribution::Empirical { quantiles } => {
                Drawn::Empirical(quantiles.iter().map(|(p, s)| (*p, s * NS)).collect())
            }
            Distribution::Mixture { parts } => {
                let total: f64 = parts.iter().map(|p| p.weight).sum();
                let mut sum = 0.0;
                Drawn::Mixture(
                    parts
                        .iter()
                        .map(|p| {
                            sum += p.weight / total;
                            (sum, p.of.drawn())
                        })
                        .collect(),
                )
            }
            Distribution::Sum { parts } => {
                let mut constant = 0.0;
                let mut drawn = Vec::new();
                for part in parts {
                    match part.drawn() {
                        Drawn::Constant(c) => constant += c,
                        other => drawn.push(other),
                    }
                }
                if drawn.is_empty() {
                    Drawn::Constant(constant)
                } else {
                    Drawn::Sum(constant, drawn)
                }
            }
        }
    }
}

/// Probabilities of the normal distribution below the lower and the upper bound.
fn cut(mean_s: f64, sd_s: f64, low_s: f64, high_s: Option<f64>) -> (f64, f64) {
    (
        normal_cdf((low_s - mean_s) / sd_s),
        high_s.map_or(1.0, |h| normal_cdf((h - mean_s) / sd_s)),
    )
}

#[inline]
fn interpolate(quantiles: &[(f64, f64)], p: f64) -> f64 {
    let after = quantiles
        .partition_point(|(q, _)| *q <= p)
        .clamp(1, quantiles.len() - 1);
    let ((p0, s0), (p1, s1)) = (quantiles[after - 1], quantiles[after]);
    s0 + (p - p0) / (p1 - p0) * (s1 - s0)
}

/// Merge neighbours until about `n` points remain. The mean does not change.
fn thinned(points: &[(f64, f64)], n: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::with_capacity(n + 1);
    let (mut weight, mut moment) = (0.0, 0.0);
    for (s, w) in points {
        weight += w;
        moment += s * w;
        if weight >= 1.0 / n as f64 {
            out.push((moment / weight, weight));
            (weight, moment) = (0.0, 0.0);
        }
    }
    if weight > 0.0 {
        out.push((moment / weight, weight));
    }
    out
}

fn weighted_quantile(points: &[(f64, f64)], p: f64) -> f64 {
    let mut sum = 0.0;
    for (s, w) in points {
        sum += w;
        if sum >= p {
            return *s;
        }
    }
    points.last().map_or(0.0, |(s, _)| *s)
}

/// A distribution compiled for draws in nanoseconds.
#[derive(Debug, Clone)]
pub struct Sampler(Drawn);

impl Sampler {
    /// Draw one time in nanoseconds.
    #[inline]
    pub fn draw(&self, draws: &mut Draws) -> f64 {
        self.0.draw(draws)
    }

    /// The constant time in nanoseconds; `None` if the distribution is random.
    #[must_use]
    pub fn constant_ns(&self) -> Option<f64> {
        match self.0 {
            Drawn::Constant(value) => Some(value),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
enum Drawn {
    Constant(f64),
    Uniform {
        low: f64,
        width: f64,
    },
    Exponential {
        mean: f64,
    },
    TruncatedNormal {
        mean: f64,
        sd: f64,
        below: f64,
        mass: f64,
        low: f64,
        high: f64,
    },
    Lognormal {
        mu: f64,
        sigma: f64,
    },
    Empirical(Vec<(f64, f64)>),
    Mixture(Vec<(f64, Drawn)>),
    Sum(f64, Vec<Drawn>),
}

impl Drawn {
    #[inline]
    fn draw(&self, draws: &mut Draws) -> f64 {
        match self {
            Drawn::Constant(value) => *value,
            Drawn::Uniform { low, width } => low + width * draws.uniform(),
            Drawn::Exponential { mean } => -mean * draws.uniform().ln(),
            Drawn::TruncatedNormal {
                mean,
                sd,
                below,
                mass,
                low,
                high,
            } => {
                let p = (below + mass * draws.uniform()).clamp(1e-300, 1.0 - 1e-16);
                (mean + sd * normal_quantile(p)).clamp(*low, *high)
            }
            Drawn::Lognormal { mu, sigma } => (mu + sigma * normal_quantile(draws.uniform())).exp(),
            Drawn::Empirical(quantiles) => interpolate(quantiles, draws.uniform()),
            Drawn::Mixture(parts) => {
                let u = draws.uniform();
                let chosen = parts.iter().find(|(upto, _)| u <= *upto).or(parts.last());
                chosen.map_or(0.0, |(_, part)| part.draw(draws))
            }
            Drawn::Sum(constant, parts) => parts
                .iter()
                .fold(*constant, |sum, part| sum + part.draw(draws)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Distribution> {
        let lognormal = Distribution::Lognormal {
            mean_s: 0.002,
            sigma: 0.5,
        };
        let uniform = Distribution::Uniform {
            low_s: 0.0,
            high_s: 0.00833,
        };
        vec![
            Distribution::Constant { value_s: 0.005 },
            uniform.clone(),
            Distribution::Exponential { mean_s: 0.001 },
            Distribution::TruncatedNormal {
                mean_s: 0.001,
                sd_s: 0.001,
                low_s: 0.0,
                high_s: None,
            },
            Distribution::TruncatedNormal {
                mean_s: 2.0,
                sd_s: 1.0,
                low_s: 1.5,
                high_s: Some(2.2),
            },
            lognormal.clone(),
            Distribution::Empirical {
                quantiles: vec![(0.0, 0.001), (0.5, 0.002), (1.0, 0.01)],
            },
            Distribution::Mixture {
                parts: vec![
                    Part {
                        weight: 3.0,
                        of: uniform.clone(),
                    },
                    Part {
                        weight: 1.0,
                        of: lognormal.clone(),
                    },
                ],
            },
            Distribution::Sum {
                parts: vec![lognormal, uniform],
            },
        ]
    }

    #[test]
    fn draws_have_the_stated_mean_and_quantiles() {
        for distribution in every_kind() {
            distribution.validate().unwrap();
            let sampler = distribution.sampler();
            let n = 200_000;
            let mut drawn: Vec<f64> = (0..n)
                .map(|i| sampler.draw(&mut Draws::keyed(1, 0, i, 0)) * 1e-9)
                .collect();
            let mean = drawn.iter().sum::<f64>() / n as f64;
            assert!(
                (mean / distribution.mean_s() - 1.0).abs() < 0.01,
                "{distribution:?} {mean}"
            );
            drawn.sort_unstable_by(f64::total_cmp);
            for p in [0.1, 0.5, 0.9, 0.99] {
                let (empirical, stated) =
                    (drawn[(p * n as f64) as usize], distribution.quantile_s(p));
                assert!(
                    (empirical / stated - 1.0).abs() < 0.02,
                    "{distribution:?} p={p} {empirical} {stated}"
                );
            }
        }
    }

    #[test]
    fn scaling_multiplies_mean_and_quantiles() {
        for distribution in every_kind() {
            let slower = distribution.scaled(4.0);
            assert!((slower.mean_s() / distribution.mean_s() - 4.0).abs() < 1e-9);
            assert!((slower.quantile_s(0.9) / distribution.quantile_s(0.9) - 4.0).abs() < 1e-9);
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        let cases: Vec<(Distribution, &str)> = vec![
            (
                Distribution::Constant { value_s: f64::NAN },
                "value_s is NaN",
            ),
            (Distribution::Constant { value_s: -1.0 }, "value_s is -1"),
            (
                Distribution::Uniform {
                    low_s: 2.0,
                    high_s: 1.0,
                },
                "low_s 2 is above high_s 1",
            ),
            (
                Distribution::Exponential { mean_s: 0.0 },
                "above 0 is expected",
            ),
            (
                Distribution::Lognormal {
                    mean_s: 1.0,
                    sigma: f64::INFINITY,
                },
                "sigma",
            ),
            (
                Distribution::Empirical {
                    quantiles: vec![(0.0, 1.0)],
                },
                "at least 2",
            ),
            (
                Distribution::Empirical {
                    quantiles: vec![(0.0, 2.0), (1.0, 1.0)],
                },
                "sort them",
            ),
            (
                Distribution::Empirical {
                    quantiles: vec![(0.1, 1.0), (1.0, 2.0)],
                },
                "0 to 1 is expected",
            ),
            (Distribution::Mixture { parts: vec![] }, "parts is empty"),
            (
                Distribution::Sum {
                    parts: vec![Distribution::Constant { value_s: -2.0 }],
                },
                "parts[0].value_s is -2",
            ),
        ];
        for (distribution, message) in cases {
            let error = distribution.validate().unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
