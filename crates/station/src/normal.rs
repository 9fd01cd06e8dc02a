//! The standard normal distribution: cumulative probability and its inverse.

/// Probability that a standard normal variable is at most `x` (series near zero, continued fraction in the tails).
#[must_use]
pub fn normal_cdf(x: f64) -> f64 {
    let z = x.abs();
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let upper = if z < 3.0 {
        let (mut term, mut sum, mut n) = (z, z, 1.0);
        while term > 1e-17 * sum && n < 400.0 {
            n += 2.0;
            term *= z * z / n;
            sum += term;
        }
        0.5 - density * sum
    } else if z < 39.0 {
        let mut tail = z;
        for n in (1..=120).rev() {
            tail = z + f64::from(n) / tail;
        }
        density / tail
    } else {
        0.0
    };
    if x > 0.0 {
        1.0 - upper
    } else {
        upper
    }
}

/// Density of the standard normal variable.
#[must_use]
pub fn normal_density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn ratio(x: f64, top: [f64; 8], bottom: [f64; 7]) -> f64 {
    let numerator = top.iter().rev().fold(0.0, |sum, c| sum * x + c);
    let denominator = bottom.iter().rev().fold(0.0, |sum, c| (sum + c) * x) + 1.0;
    numerator / denominator
}

/// Inverse of [`normal_cdf`] for `p` in (0, 1); relative error about 1e-16
/// (M. J. Wichura, Algorithm AS 241, Applied Statistics 37, 1988).
#[inline]
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * ratio(
            0.180_625 - q * q,
            [
                3.387_132_872_796_366_5,
                1.331_416_678_917_843_8e2,
                1.971_590_950_306_551_3e3,
                1.373_169_376_550_946e4,
                4.592_195_393_154_987e4,
                6.726_577_092_700_87e4,
                3.343_057_558_358_813e4,
                2.509_080_928_730_122_7e3,
            ],
            [
                4.231_333_070_160_091e1,
                6.871_870_074_920_579e2,
                5.394_196_021_424_751e3,
                2.121_379_430_158_659_7e4,
                3.930_789_580_009_271e4,
                2.872_908_573_572_194_3e4,
                5.226_495_278_852_854e3,
            ],
        );
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let z = if r <= 5.0 {
        ratio(
            r - 1.6,
            [
                1.423_437_110_749_683_5,
                4.630_337_846_156_546,
                5.769_497_221_460_691,
                3.647_848_324_763_204_5,
                1.270_458_252_452_368_4,
                2.417_807_251_774_506e-1,
                2.272_384_498_926_918_4e-2,
                7.745_450_142_783_414e-4,
            ],
            [
                2.053_191_626_637_759,
                1.676_384_830_183_803_8,
                6.897_673_349_851e-1,
                1.481_039_764_274_800_8e-1,
                1.519_866_656_361_645_7e-2,
                5.475_938_084_995_345e-4,
                1.050_750_071_644_416_9e-9,
            ],
        )
    } else {
        ratio(
            r - 5.0,
            [
                6.657_904_643_501_103,
                5.463_784_911_164_114,
                1.784_826_539_917_291_3,
                2.965_605_718_285_049e-1,
                2.653_218_952_657_612_4e-2,
                1.242_660_947_388_078_4e-3,
                2.711_555_568_743_487_6e-5,
                2.010_334_399_292_288_1e-7,
            ],
            [
                5.998_322_065_558_88e-1,
                1.369_298_809_227_358e-1,
                1.487_536_129_085_061_5e-2,
                7.868_691_311_456_133e-4,
                1.846_318_317_510_054_8e-5,
                1.421_511_758_316_446e-7,
                2.044_263_103_389_939_8e-15,
            ],
        )
    };
    if q < 0.0 {
        -z
    } else {
        z
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_and_round_trip() {
        assert!((normal_cdf(1.959_963_984_540_054) - 0.975).abs() < 1e-14);
        assert!((normal_quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-13);
        assert!((normal_quantile(1e-10) + 6.361_340_902_404_056).abs() < 1e-10);
        for i in 1..1000 {
            let p = f64::from(i) / 1000.0;
            assert!((normal_cdf(normal_quantile(p)) - p).abs() < 1e-13, "{p}");
        }
        for p in [1e-3, 1e-5, 1e-9, 1e-14, 1e-40] {
            let back = normal_cdf(normal_quantile(p));
            assert!((back / p - 1.0).abs() < 1e-9, "{p} {back}");
        }
    }
}
