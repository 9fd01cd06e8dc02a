//! Parser of a number in the output of a program.

/// First number of a text: sign, digits, fraction, exponent. Digits after a letter are no number (`p99`).
pub(crate) fn first(text: &[u8]) -> Option<f64> {
    let mut before = b' ';
    for (at, byte) in text.iter().enumerate() {
        let within = before.is_ascii_alphanumeric() || before == b'_';
        let signed = matches!(byte, b'+' | b'-' | b'.');
        if !within && before != b'.' && (byte.is_ascii_digit() || signed) {
            if let Some(number) = at_start(&text[at..]) {
                return Some(number);
            }
        }
        before = *byte;
    }
    None
}

fn at_start(text: &[u8]) -> Option<f64> {
    let digits = |from: usize| {
        text[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let integer = digits(sign);
    let mut end = sign + integer;
    let mut fraction = 0;
    if text.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        end += if fraction > 0 { 1 + fraction } else { 0 };
    }
    if integer + fraction == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits((end + 1 + signed).min(text.len()));
        if exponent > 0 {
            end += 1 + signed + exponent;
        }
    }
    let value: f64 = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::first;

    #[test]
    fn common_number_formats_are_parsed() {
        for (text, number) in [
            ("42\n", 42.0),
            ("  -1.5e3 rest 7", -1500.0),
            ("queue depth: 17 of 32", 17.0),
            ("p99=12.5ms", 12.5),
            ("{\"size\": +.5}", 0.5),
            ("3.", 3.0),
            ("3e", 3.0),
            ("1e999 4", 4.0),
            ("- 8", 8.0),
        ] {
            assert_eq!(first(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", "none", "nan", "inf", "p99", "a_1", "-", ".", "\u{fffd}"] {
            assert_eq!(first(text.as_bytes()), None, "{text}");
        }
    }
}
