//! Graphite's plaintext protocol: one line `path value time` per point, the path with optional `;tag=value`.
//!
//! Source: "Feeding In Your Data", "Graphite Tag Support" of Graphite 1.1.

use std::collections::BTreeMap;

use crate::columns::{ParsedSeries, Reader, Refusal, Value, MOST_LINE};
use crate::number;

const SECOND_NS: i64 = 1_000_000_000;

/// Read lines. A time of -1 stands for `now_ns`. The last line may lack its line end.
pub fn read(reader: &mut Reader, text: &[u8], now_ns: i64) {
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        if let Err((why, what)) = read_line(reader, number + 1, line, now_ns) {
            reader.refuse(number + 1, why, &what);
        }
    }
}

fn read_line(
    reader: &mut Reader,
    number: usize,
    line: &[u8],
    now_ns: i64,
) -> Result<(), (Refusal, String)> {
    if line.len() > MOST_LINE {
        return Err((
            Refusal::TooLong,
            format!("a line of more than {MOST_LINE} bytes"),
        ));
    }
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let (Some(path), Some(value), Some(time), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err((
            Refusal::Malformed,
            "a line other than `path value time`".into(),
        ));
    };
    let value = number::float(value)
        .ok_or_else(|| (Refusal::Malformed, "a value that is no number".to_owned()))?;
    let utc_ns = number::time_ns(time, SECOND_NS).ok_or_else(|| {
        (
            Refusal::Malformed,
            "a time that is no number of seconds".to_owned(),
        )
    })?;
    point(reader, number, path, utc_ns, now_ns, value)
}

/// One point of a path.
pub(crate) fn point(
    reader: &mut Reader,
    number: usize,
    path: &[u8],
    utc_ns: i64,
    now_ns: i64,
    value: f64,
) -> Result<(), (Refusal, String)> {
    let utc_ns = if utc_ns == -SECOND_NS { now_ns } else { utc_ns };
    let series = reader.series(path, || meaning(path))?;
    reader.latest(number, series, utc_ns, Value::Float(value));
    Ok(())
}

fn meaning(path: &[u8]) -> ParsedSeries {
    let malformed = |what: &str| (Refusal::Malformed, what.to_owned());
    let path = std::str::from_utf8(path).map_err(|_| malformed("a path that is not UTF-8"))?;
    let mut parts = path.split(';');
    let metric = parts.next().unwrap_or_default().to_owned();
    let mut labels = BTreeMap::new();
    for tag in parts {
        match tag.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                labels.insert(name.to_owned(), value.to_owned());
            }
            _ => return Err(malformed("a tag without a name or a value")),
        }
    }
    Ok((metric, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tags_and_errors() {
        let mut reader = Reader::new(10, true);
        let text = b"a.b 1.5 1700000000\r\na.b;host=x;dev=y 2 1700000000.25\nc 3 -1\nd\na.b x 1\na.b 1 x\n\
                     a.b nan 1700000001\na.b 4 1600000000\na;t 1 1\n\n  e\t5  1700000000  \nf \xff 1\n\xff 1 1";
        read(&mut reader, text, 42);
        let batch = reader.take();
        assert_eq!(
            batch.utc_ns,
            [
                1_700_000_000_000_000_000,
                1_700_000_000_250_000_000,
                42,
                1_700_000_001_000_000_000,
                1_700_000_000_000_000_000
            ]
        );
        assert_eq!(batch.valueless, 1);
        assert_eq!(
            batch
                .label_sets
                .iter()
                .map(AsRef::as_ref)
                .collect::<Vec<&str>>(),
            ["{}", r#"{"dev":"y","host":"x"}"#]
        );
        assert_eq!(batch.refused[&Refusal::Malformed], 6);
        assert_eq!(batch.refused[&Refusal::NotFinite], 1);
        assert_eq!(batch.refused[&Refusal::Backwards], 1);
    }
}
