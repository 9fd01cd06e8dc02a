//! Numbers and times in text.

/// A number in ASCII, as Rust spells it: `1`, `-0.5`, `1e9`, `inf`, `NaN`.
pub fn float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds, or other units of `unit_ns`, as nanoseconds; decimals are exact as far as nanoseconds go.
pub fn time_ns(text: &[u8], unit_ns: i64) -> Option<i64> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let point = memchr::memchr(b'.', digits).unwrap_or(digits.len());
    let (whole, part) = (&digits[..point], digits.get(point + 1..).unwrap_or(b""));
    let all_digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if whole.is_empty() || !all_digits(whole) || !all_digits(part) {
        let value = float(text)? * unit_ns as f64;
        return (value.is_finite() && value.abs() < 9.2e18).then_some(value as i64);
    }
    let mut total = digits_of(whole)?.checked_mul(unit_ns)?;
    let mut worth = unit_ns;
    for &digit in part {
        worth /= 10;
        total = total.checked_add(i64::from(digit - b'0') * worth)?;
    }
    Some(if negative { -total } else { total })
}

fn digits_of(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0_i64, |sum, digit| {
        sum.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_of_a_second_are_exact() {
        assert_eq!(
            time_ns(b"1700000000.123456789", 1_000_000_000),
            Some(1_700_000_000_123_456_789)
        );
        assert_eq!(
            time_ns(b"1700000000", 1_000_000_000),
            Some(1_700_000_000_000_000_000)
        );
        assert_eq!(time_ns(b"-2.5", 1_000_000_000), Some(-2_500_000_000));
        assert_eq!(time_ns(b"1.5e3", 1_000_000), Some(1_500_000_000));
        for wrong in [
            &b""[..],
            b".",
            b"-",
            b"1.2.3",
            b"99999999999",
            b"nan",
            b"1e300",
            b"x",
        ] {
            assert_eq!(time_ns(wrong, 1_000_000_000), None, "{wrong:?}");
        }
    }
}
