//! Parsers of numbers and times.

/// Number in ASCII, in Rust's syntax: `1`, `-0.5`, `1e9`, `inf`, `NaN`.
pub fn float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Nearest float of an integer of any size, in two's complement, lowest byte first.
pub fn float_of_bytes(bytes: &[u8]) -> f64 {
    let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    let mut carry = negative;
    let mut magnitude: Vec<u8> = bytes.to_vec();
    if negative {
        for byte in &mut magnitude {
            let (sum, over) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (sum, over);
        }
    }
    if carry {
        magnitude.push(1);
    }
    while magnitude.last() == Some(&0) {
        magnitude.pop();
    }
    // 128 bits suffice to round 53 bits correctly, if the lowest one shows whether a lower bit is set
    let shift = magnitude.len().saturating_sub(16);
    let mut high = magnitude[shift..]
        .iter()
        .rev()
        .fold(0_u128, |sum, &byte| sum << 8 | u128::from(byte));
    high |= u128::from(magnitude[..shift].iter().any(|&byte| byte != 0));
    let value = high as f64 * 2_f64.powi(i32::try_from(8 * shift).unwrap_or(i32::MAX));
    if negative {
        -value
    } else {
        value
    }
}

/// Time in units of `unit_ns`, as nanoseconds. Decimals are exact to the nanosecond.
pub fn time_ns(text: &[u8], unit_ns: i64) -> Option<i64> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let point = memchr::memchr(b'.', digits).unwrap_or(digits.len());
    let (integer, part) = (&digits[..point], digits.get(point + 1..).unwrap_or(b""));
    let all_digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if integer.is_empty() || !all_digits(integer) || !all_digits(part) {
        let value = float(text)? * unit_ns as f64;
        return (value.is_finite() && value.abs() < 9.2e18).then_some(value as i64);
    }
    let mut total = digits_of(integer)?.checked_mul(unit_ns)?;
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
    fn integers_of_any_size_are_rounded_once() {
        assert_eq!(float_of_bytes(&[]), 0.0);
        assert_eq!(float_of_bytes(&[0xff]), -1.0);
        assert_eq!(
            float_of_bytes(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]),
            2_f64.powi(63)
        );
        assert_eq!(
            float_of_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 0x80]),
            -2_f64.powi(71)
        );
        // half of the last place plus a much smaller bit: rounded up
        let mut bytes = vec![0; 30];
        (bytes[0], bytes[22], bytes[29]) = (1, 0x08, 1);
        let unit = 2_f64.powi(8 * 29);
        assert_eq!(float_of_bytes(&bytes), unit * (1.0 + f64::EPSILON));
        bytes[0] = 0;
        assert_eq!(float_of_bytes(&bytes), unit);
        assert!(float_of_bytes(&[1; 200]).is_infinite());
    }

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
