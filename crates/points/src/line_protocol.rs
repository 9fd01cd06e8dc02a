//! InfluxDB line protocol: `measurement,tag=value field=1.5,other=2i 1700000000000000000`.
//!
//! Source: "Line protocol reference" of InfluxDB 1.x. A field becomes the metric `measurement_field`; the field `value`
//! becomes the metric `measurement`. If fields of two measurements would have one metric, those of the second are refused.

use std::collections::BTreeMap;

use crate::columns::{ParsedField, Reader, Refusal, Value, MOST_LINE};
use crate::number;

/// Reason why a line is refused.
type Rejection = (Refusal, String);

fn malformed(what: &str) -> Rejection {
    (Refusal::Malformed, what.to_owned())
}

/// Read lines. Times are in units of `unit_ns`; a line without a time has `now_ns`.
pub fn read(reader: &mut Reader, text: &[u8], now_ns: i64, unit_ns: i64) {
    let mut at = 0;
    let mut line = 0;
    let mut name = Vec::with_capacity(256);
    while at < text.len() {
        line += 1;
        let rest = &text[at..];
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let first = &rest[..end];
        if first.trim_ascii().is_empty() || first.trim_ascii_start()[0] == b'#' {
            at += end + 1;
            continue;
        }
        let indent = rest.len() - rest.trim_ascii_start().len();
        match read_line(reader, line, &rest[indent..], now_ns, unit_ns, &mut name) {
            Ok(used) => {
                let used = indent + used;
                line += memchr::memchr_iter(b'\n', &rest[..used.saturating_sub(1)]).count();
                at += used;
            }
            Err((mut why, mut what)) => {
                // all fields of the line are refused, and each counts as a point
                let (length, fields) = extent(&rest[indent..]);
                if length > MOST_LINE {
                    why = Refusal::TooLong;
                    what = format!("a line of more than {MOST_LINE} bytes");
                }
                reader.refuse_all(line, why, &what, fields);
                let used = indent + length;
                line += memchr::memchr_iter(b'\n', &rest[..used.saturating_sub(1)]).count();
                at += used;
            }
        }
    }
}

/// Read one line. Return its length in bytes of `text`, with the line end.
fn read_line(
    reader: &mut Reader,
    line: usize,
    text: &[u8],
    now_ns: i64,
    unit_ns: i64,
    name: &mut Vec<u8>,
) -> Result<usize, Rejection> {
    let text = &text[..text.len().min(MOST_LINE)];
    let key_end = up_to(text, 0, b" ").ok_or_else(|| malformed("a line without fields"))?;
    let fields = skip(text, key_end, b' ');
    // the time follows the fields: find it before any point is added
    let fields_end = end_of_fields(text, fields)?;
    let time = skip(text, fields_end, b' ');
    let end = memchr::memchr(b'\n', &text[time..]).map_or(text.len(), |n| time + n);
    if end == MOST_LINE {
        return Err(malformed("a line that is cut"));
    }
    let stamp = text[time..end].trim_ascii();
    let utc_ns = if stamp.is_empty() {
        now_ns
    } else {
        std::str::from_utf8(stamp)
            .ok()
            .and_then(|stamp| stamp.parse::<i64>().ok())
            .and_then(|stamp| stamp.checked_mul(unit_ns))
            .ok_or_else(|| malformed("a time that is no whole number in range"))?
    };
    // accept all fields of a line or none
    let mut taken = Vec::with_capacity(8);
    let mut conflicts = Vec::new();
    let mut at = fields;
    while at < fields_end {
        let equals = up_to(&text[..fields_end], at, b"=,")
            .filter(|&equals| text[equals] == b'=')
            .ok_or_else(|| malformed("a field without a value"))?;
        let field = &text[at..equals];
        let (value, next) = value_of(&text[..fields_end], equals + 1)?;
        name.clear();
        name.extend_from_slice(&text[..key_end]);
        name.push(0);
        name.extend_from_slice(field);
        match reader.series_of(name, || meaning(&text[..key_end], field)) {
            Ok(series) => taken.push((series, value)),
            Err((Refusal::Conflict, what)) => conflicts.push(what),
            Err(rejection) => return Err(rejection),
        }
        at = next;
        if at < fields_end {
            if text[at] != b',' {
                return Err(malformed("something behind a field's value"));
            }
            at += 1;
            if at == fields_end {
                return Err(malformed("a comma behind the last field"));
            }
        }
    }
    for what in &conflicts {
        reader.refuse(line, Refusal::Conflict, what);
    }
    for (series, value) in &taken {
        let value = match value {
            Field::Plain(value) => *value,
            Field::Text(text) => Value::Text(text),
        };
        reader.latest(line, *series, utc_ns, value);
    }
    Ok((end + 1).min(text.len().max(1)))
}

/// Length of a line that was not parsed, with its end [bytes], and its estimated number of fields, at least 1.
fn extent(text: &[u8]) -> (usize, u64) {
    let physical = memchr::memchr(b'\n', text).map_or(text.len(), |n| n + 1);
    let Some(key_end) = up_to(text, 0, b" ") else {
        return (physical, 1);
    };
    let from = skip(text, key_end, b' ');
    let (end, fields) = match end_of_fields(text, from) {
        Ok(fields_end) => (
            memchr::memchr(b'\n', &text[fields_end..]).map_or(text.len(), |n| fields_end + n + 1),
            &text[from..fields_end],
        ),
        // a text without a closing quote would extend over all lines after it
        Err(_) => (physical, &text[from.min(physical)..physical]),
    };
    let (mut count, mut quoted, mut in_value, mut at) = (0, false, false, 0);
    let mut empty = true;
    while at < fields.len() {
        match fields[at] {
            b'\\' => at += 1,
            b'"' if quoted => quoted = false,
            b'"' if in_value => quoted = true,
            _ if quoted => {}
            b'=' => in_value = true,
            b',' => {
                count += u64::from(!empty);
                (in_value, empty) = (false, true);
                at += 1;
                continue;
            }
            _ => {}
        }
        empty = false;
        at += 1;
    }
    (end, (count + u64::from(!empty)).max(1))
}

/// Position of the first byte of `ends` on this line without a backslash before it; None if there is none.
fn up_to(text: &[u8], from: usize, ends: &[u8]) -> Option<usize> {
    let mut at = from;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'\n' => return None,
            byte if ends.contains(&byte) => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

fn skip(text: &[u8], from: usize, what: u8) -> usize {
    from + text[from..]
        .iter()
        .take_while(|&&byte| byte == what)
        .count()
}

/// End of the fields that begin at `from`: a space or line end outside of a text.
fn end_of_fields(text: &[u8], from: usize) -> Result<usize, Rejection> {
    let (mut at, mut quoted, mut in_value) = (from, false, false);
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'"' if quoted => quoted = false,
            b'"' if in_value => quoted = true,
            _ if quoted => {}
            b'=' => in_value = true,
            b',' => in_value = false,
            b' ' | b'\n' | b'\r' => break,
            _ => {}
        }
        at += 1;
    }
    let at = at.min(text.len());
    if quoted {
        return Err(malformed("a text without its end"));
    }
    if at == from {
        return Err(malformed("a line without fields"));
    }
    Ok(at)
}

/// Parsed value of a field.
enum Field {
    Plain(Value<'static>),
    Text(String),
}

/// Value of a field, and its end.
fn value_of(text: &[u8], from: usize) -> Result<(Field, usize), Rejection> {
    if text.get(from) == Some(&b'"') {
        let mut at = from + 1;
        let mut bytes = Vec::new();
        loop {
            match text.get(at) {
                None => return Err(malformed("a text without its end")),
                Some(b'"') => break,
                Some(b'\\') if matches!(text.get(at + 1), Some(b'"' | b'\\')) => {
                    bytes.push(text[at + 1]);
                    at += 1;
                }
                Some(&byte) => bytes.push(byte),
            }
            at += 1;
        }
        let text = String::from_utf8(bytes).map_err(|_| malformed("a text that is not UTF-8"))?;
        return Ok((Field::Text(text), at + 1));
    }
    let end = memchr::memchr(b',', &text[from..]).map_or(text.len(), |n| from + n);
    let word = &text[from..end];
    let no_value = || malformed("a field's value that is no number, text or boolean");
    let value = match word {
        b"t" | b"T" | b"true" | b"True" | b"TRUE" => Value::Boolean(true),
        b"f" | b"F" | b"false" | b"False" | b"FALSE" => Value::Boolean(false),
        [digits @ .., b'i'] => Value::Integer(parsed(digits).ok_or_else(no_value)?),
        [digits @ .., b'u'] => {
            let value: u64 = parsed(digits).ok_or_else(no_value)?;
            // above 2^63, the nearest float: points have no unsigned integers
            i64::try_from(value).map_or(Value::Float(value as f64), Value::Integer)
        }
        _ => Value::Float(number::float(word).ok_or_else(no_value)?),
    };
    Ok((Field::Plain(value), end))
}

fn parsed<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Metric and labels of a measurement with its tags and one field, and the length of the measurement.
fn meaning(key: &[u8], field: &[u8]) -> ParsedField {
    let parts = split(key, b',');
    let mut labels = BTreeMap::new();
    for tag in &parts[1..] {
        let equals = up_to(tag, 0, b"=").ok_or_else(|| malformed("a tag without a value"))?;
        let (name, value) = (plain(&tag[..equals])?, plain(&tag[equals + 1..])?);
        if name.is_empty() || value.is_empty() {
            return Err(malformed("a tag without a name or a value"));
        }
        if labels.insert(name, value).is_some() {
            return Err(malformed("a tag that stands twice"));
        }
    }
    let (measurement, field) = (plain(parts[0])?, plain(field)?);
    if measurement.is_empty() || field.is_empty() {
        return Err(malformed("a measurement or a field without a name"));
    }
    let length = measurement.len();
    let metric = if field == "value" {
        measurement
    } else {
        format!("{measurement}_{field}")
    };
    Ok(((metric, labels), length))
}

fn split(text: &[u8], by: u8) -> Vec<&[u8]> {
    let (mut parts, mut from) = (Vec::new(), 0);
    while let Some(at) = up_to(text, from, &[by]) {
        parts.push(&text[from..at]);
        from = at + 1;
    }
    parts.push(&text[from..]);
    parts
}

/// Name without backslashes.
fn plain(text: &[u8]) -> Result<String, Rejection> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'\\' && matches!(text.get(at + 1), Some(b',' | b'=' | b' ')) {
            at += 1;
        }
        if text[at] < b' ' {
            return Err(malformed("a control character in a name"));
        }
        bytes.push(text[at]);
        at += 1;
    }
    String::from_utf8(bytes).map_err(|_| malformed("a name that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    fn of(text: &str) -> Batch {
        let mut reader = Reader::new(100, true);
        read(&mut reader, text.as_bytes(), 7, 1);
        reader.take()
    }

    fn rows(batch: &Batch) -> Vec<(String, String, i64, u8, i64)> {
        (0..batch.utc_ns.len())
            .map(|k| {
                (
                    batch.metrics[batch.metric[k] as usize].to_string(),
                    batch.label_sets[batch.labels[k] as usize].to_string(),
                    batch.utc_ns[k],
                    batch.kind[k],
                    batch.bits[k],
                )
            })
            .collect()
    }

    fn row(
        metric: &str,
        labels: &str,
        ns: i64,
        kind: u8,
        bits: i64,
    ) -> (String, String, i64, u8, i64) {
        (metric.into(), labels.into(), ns, kind, bits)
    }

    #[test]
    fn every_kind_of_value_and_the_escapes() {
        let batch = of(
            "disk,host=a,dev=sd\\ a read=4096i,busy=0.5,name=\"x, \\\"y\\\" = z\",up=t 12\n\
             # a comment\n\n  load value=1.5\r\n",
        );
        let labels = r#"{"dev":"sd a","host":"a"}"#;
        assert_eq!(
            rows(&batch),
            [
                row("disk_read", labels, 12, 1, 4096),
                row("disk_busy", labels, 12, 0, 0.5_f64.to_bits() as i64),
                row("disk_name", labels, 12, 2, 0),
                row("disk_up", labels, 12, 3, 1),
                row("load", "{}", 7, 0, 1.5_f64.to_bits() as i64),
            ]
        );
        assert_eq!(batch.texts, ["x, \"y\" = z"]);
        assert!(batch.refused.is_empty(), "{:?}", batch.messages);
    }

    #[test]
    fn tag_order_does_not_create_a_series() {
        let batch = of("m,a=1,b=2 value=1 1\nm,b=2,a=1 value=2 2\n");
        assert_eq!(batch.label_sets.len(), 1);
        assert_eq!(batch.utc_ns, [1, 2]);
    }

    #[test]
    fn measurements_do_not_share_a_metric() {
        let text = "disk used_percent=1,free=2 5\ndisk_used percent=99,bytes=3 5\ndisk_used_percent value=7 5\n\
                    disk_used,host=a percent=4 5\ndisk used_percent=6 6\n";
        let batch = of(text);
        let values: Vec<(String, f64)> = rows(&batch)
            .into_iter()
            .map(|(metric, _, _, _, bits)| (metric, f64::from_bits(bits as u64)))
            .collect();
        let expected = [
            ("disk_used_percent", 1.0),
            ("disk_free", 2.0),
            ("disk_used_bytes", 3.0),
            ("disk_used_percent", 4.0),
            ("disk_used_percent", 6.0),
        ];
        assert_eq!(
            values,
            expected.map(|(metric, value)| (metric.to_owned(), value))
        );
        assert_eq!(batch.refused[&Refusal::Conflict], 2);
        assert_eq!((batch.messages[0].0, batch.messages[1].0), (2, 3));
    }

    #[test]
    fn strings_may_span_lines() {
        let batch = of("m value=\"a\nb\" 1\nm wrong\nm value=2 2\n");
        assert_eq!(batch.texts, ["a\nb"]);
        assert_eq!(batch.messages[0].0, 3);
        assert_eq!(batch.utc_ns.len(), 2);
    }

    #[test]
    fn invalid_lines_are_skipped_and_reported() {
        let wrong = [
            "m",
            "m ",
            "m 12",
            "m a",
            "m a= 1",
            "m a=1,",
            "m a=1,,b=2",
            "m,t a=1",
            "m,t= a=1",
            "m,=v a=1",
            "m,t=1,t=2 a=1",
            ",t=1 a=1",
            "m a=x",
            "m a=1 x",
            "m a=1 1.5",
            "m a=99999999999999999999i",
            "m a=99999999999999999999u",
            "m a=-1u",
            "m a=\"x",
            "m a=1 99999999999999999999",
            "m a=\"x\"y",
            "m =1",
        ];
        for line in wrong {
            let batch = of(&format!("{line}\nok value=1\n"));
            let fields = batch.refused.get(&Refusal::Malformed).copied();
            assert!(
                fields == Some(1 + u64::from(line.contains(",b="))),
                "{line}: {:?}",
                batch.messages
            );
            assert_eq!(
                rows(&batch).last(),
                Some(&row("ok", "{}", 7, 0, 1.0_f64.to_bits() as i64)),
                "{line}"
            );
        }
        for line in ["m a=nan", "m a=inf", "m a=-Infinity", "m a=1e999"] {
            assert_eq!(
                of(line).refused.get(&Refusal::NotFinite),
                Some(&1),
                "{line}"
            );
        }
    }

    #[test]
    fn unsigned_numbers_stay_integers_if_they_fit() {
        let batch = of("m a=9223372036854775807u,b=18446744073709551615u,c=0u 1");
        assert_eq!(batch.kind, [1, 0, 1]);
        assert_eq!(batch.bits[0], i64::MAX);
        assert_eq!(f64::from_bits(batch.bits[1] as u64), 2_f64.powi(64));
        assert!(batch.refused.is_empty(), "{:?}", batch.messages);
    }

    #[test]
    fn every_field_of_a_refused_line_is_counted() {
        for (line, fields) in [
            ("m a=1,b=x,c=3", 3),
            ("m a=1,b=\"x, y\",c=z 5", 3),
            ("m a=x,b=\"\nm value=1 5\n\" 6", 2),
            ("m a=1,b=2 never", 2),
            ("m", 1),
            ("m a=1,", 1),
            ("m,t= a=1,b=2", 2),
        ] {
            let batch = of(&format!("{line}\nok value=1\n"));
            assert_eq!(batch.refused[&Refusal::Malformed], fields, "{line}");
            assert_eq!(batch.utc_ns, [7], "{line}");
        }
        let long = format!("m a=\"{}\",b=1\nok value=1\n", "x".repeat(70_000));
        let batch = of(&long);
        assert_eq!(
            (batch.refused[&Refusal::TooLong], batch.utc_ns.len()),
            (2, 1)
        );
    }

    #[test]
    fn out_of_order_times_and_excess_series_are_refused() {
        let batch = of("m value=1 5\nm value=1 5\nm value=2 5\nm value=3 4\nm value=4 6\n");
        // as in InfluxDB, a later value replaces an earlier one
        assert_eq!(batch.utc_ns, [5, 5, 6]);
        assert_eq!(batch.refused[&Refusal::Duplicate], 1);
        assert_eq!(batch.refused[&Refusal::Backwards], 1);
        let many: String = (0..150).map(|n| format!("m,n={n} value=1 1\n")).collect();
        let batch = of(&many);
        assert_eq!(
            (batch.utc_ns.len(), batch.refused[&Refusal::TooMany]),
            (100, 50)
        );
        let long = format!("m,t={} value=1\n", "x".repeat(5000));
        assert_eq!(of(&long).refused[&Refusal::TooLong], 1);
        let longer = format!("m,t={} value=1\nm value=1\n", "x".repeat(70_000));
        let batch = of(&longer);
        assert_eq!(
            (batch.utc_ns.len(), batch.refused.values().sum::<u64>()),
            (1, 1)
        );
    }
}
