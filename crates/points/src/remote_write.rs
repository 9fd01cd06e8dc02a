//! Prometheus remote write 1.0: a `WriteRequest` in protocol buffers, to read and to write. The caller handles Snappy.
//!
//! ```text
//! WriteRequest { repeated TimeSeries timeseries = 1; repeated Metadata metadata = 3; }
//! TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; repeated Exemplar exemplars = 3;
//!                repeated Histogram histograms = 4; }
//! Label        { string name = 1; string value = 2; }
//! Sample       { double value = 1; int64 timestamp = 2; }        // milliseconds
//! ```
//!
//! Native histograms are refused and counted. Exemplars are counted.
//!
//! Source: "Prometheus Remote-Write 1.0 specification".

use std::collections::BTreeMap;

use crate::columns::{ParsedSeries, Reader, Refusal, Value};
use crate::wire::{put_bytes, put_varint, Field, Fields};

/// Label with the metric's name.
const NAME: &str = "__name__";
const MOST_SERIES_BYTES: usize = 1 << 16;
const MS_NS: i64 = 1_000_000;

/// Read a message. Error: the reason why it is not a valid one.
pub fn read(reader: &mut Reader, message: &[u8]) -> Result<(), String> {
    let mut spelling = Vec::new();
    for (number, field) in Fields(message).enumerate() {
        match field? {
            (1, Field::Bytes(series)) => one_series(reader, number + 1, series, &mut spelling)?,
            (4 | 5, Field::Bytes(_)) => {
                return Err("a message of remote write 2.0 under the content type of 1.0".into())
            }
            _ => {}
        }
    }
    Ok(())
}

fn one_series(
    reader: &mut Reader,
    number: usize,
    message: &[u8],
    spelling: &mut Vec<u8>,
) -> Result<(), String> {
    spelling.clear();
    for field in Fields(message) {
        if let (1, Field::Bytes(label)) = field? {
            put_bytes(spelling, 1, label);
        }
    }
    let series = registered(reader, spelling, || meaning(spelling));
    for field in Fields(message) {
        match field? {
            (2, Field::Bytes(part)) => sample(reader, number, &series, part)?,
            (3, Field::Bytes(_)) => reader.exemplars(1),
            (4, Field::Bytes(_)) => histogram(reader, number, &series),
            _ => {}
        }
    }
    Ok(())
}

/// Number of a series, or the reason to refuse it.
pub(crate) type Series = Result<u32, (Refusal, String)>;

/// Find or register the series that `spelling` identifies.
pub(crate) fn registered(
    reader: &mut Reader,
    spelling: &[u8],
    meaning: impl FnOnce() -> ParsedSeries,
) -> Series {
    if spelling.len() > MOST_SERIES_BYTES {
        return Err((
            Refusal::TooLong,
            format!("labels of more than {MOST_SERIES_BYTES} bytes"),
        ));
    }
    reader.series(spelling, meaning)
}

/// Read one sample of a series: value and time [ms]. Both versions have the same format.
pub(crate) fn sample(
    reader: &mut Reader,
    number: usize,
    series: &Series,
    message: &[u8],
) -> Result<(), String> {
    let (mut value, mut time_ms) = (0.0, 0);
    for part in Fields(message) {
        match part? {
            (1, Field::Fixed64(bits)) => value = f64::from_bits(bits),
            (2, Field::Varint(ms)) => time_ms = ms as i64,
            _ => {}
        }
    }
    match (series, time_ms.checked_mul(MS_NS)) {
        (Ok(series), Some(ns)) => reader.point(number, *series, ns, Value::Float(value)),
        (Err((why, what)), _) => reader.refuse(number, *why, what),
        (_, None) => reader.refuse(number, Refusal::Malformed, "a time out of range"),
    }
    Ok(())
}

/// Refuse a native histogram.
pub(crate) fn histogram(reader: &mut Reader, number: usize, series: &Series) {
    match series {
        Ok(_) => reader.refuse(
            number,
            Refusal::Histogram,
            "a native histogram, which is not stored; classic histograms are",
        ),
        Err((why, what)) => reader.refuse(number, *why, what),
    }
}

fn meaning(spelling: &[u8]) -> ParsedSeries {
    let malformed = |what: String| (Refusal::Malformed, what);
    let mut labels = Vec::new();
    for label in Fields(spelling) {
        let (mut name, mut value) = (&b""[..], &b""[..]);
        if let (1, Field::Bytes(label)) = label.map_err(malformed)? {
            for part in Fields(label) {
                match part.map_err(malformed)? {
                    (1, Field::Bytes(text)) => name = text,
                    (2, Field::Bytes(text)) => value = text,
                    _ => {}
                }
            }
        }
        labels.push((name, value));
    }
    of_labels(&labels)
}

/// Metric and labels of a series, from its labels with `__name__`.
pub(crate) fn of_labels(pairs: &[(&[u8], &[u8])]) -> ParsedSeries {
    let malformed = |what: &str| (Refusal::Malformed, what.to_owned());
    let mut labels = BTreeMap::new();
    for (name, value) in pairs {
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).map(str::to_owned);
            text.map_err(|_| malformed("a label that is not UTF-8"))
        };
        if name.is_empty() {
            return Err(malformed("a label without a name"));
        }
        if labels.insert(text(name)?, text(value)?).is_some() {
            return Err(malformed("a label that stands twice"));
        }
    }
    let metric = labels.remove(NAME);
    let metric = metric.ok_or_else(|| malformed("a series without the label __name__"))?;
    labels.retain(|_, value| !value.is_empty());
    Ok((metric, labels))
}

/// Series to send: labels without the name, times in milliseconds, and values.
pub struct Sent<'a> {
    /// The metric's name.
    pub metric: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Times [ms since 1970] and values.
    pub samples: &'a [(i64, f64)],
}

/// Append a series to a message. Labels are sorted by name, as receivers require.
pub fn write(message: &mut Vec<u8>, series: &Sent<'_>) {
    let mut all: BTreeMap<&str, &str> = series
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    all.insert(NAME, series.metric);
    let mut body = Vec::new();
    let mut part = Vec::new();
    for (name, value) in all {
        part.clear();
        put_bytes(&mut part, 1, name.as_bytes());
        put_bytes(&mut part, 2, value.as_bytes());
        put_bytes(&mut body, 1, &part);
    }
    for &(time_ms, value) in series.samples {
        part.clear();
        part.push(1 << 3 | 1);
        part.extend(value.to_le_bytes());
        part.push(2 << 3);
        put_varint(&mut part, time_ms as u64);
        put_bytes(&mut body, 2, &part);
    }
    put_bytes(message, 1, &body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unstored_points_are_counted() {
        let mut series = Vec::new();
        put_bytes(&mut series, 1, b"\x0a\x08__name__\x12\x01m");
        put_bytes(&mut series, 2, b"\x10\x05");
        put_bytes(&mut series, 3, b"");
        put_bytes(&mut series, 4, b"");
        put_bytes(&mut series, 4, b"");
        let mut message = Vec::new();
        put_bytes(&mut message, 1, &series);
        put_bytes(&mut message, 3, b"metadata");
        let mut reader = Reader::new(10, true);
        read(&mut reader, &message).unwrap();
        let batch = reader.take();
        assert_eq!(batch.utc_ns, [5_000_000]);
        assert_eq!(batch.refused[&Refusal::Histogram], 2);
        assert_eq!(batch.exemplars, 1);
        put_bytes(&mut message, 5, b"");
        assert!(read(&mut Reader::new(10, true), &message).is_err());
    }

    #[test]
    fn staleness_markers_differ_from_nan() {
        let mut message = Vec::new();
        let stale = f64::from_bits(crate::columns::STALE_BITS);
        let samples = [(1, 1.0), (2, f64::NAN), (3, f64::INFINITY), (4, stale)];
        write(
            &mut message,
            &Sent {
                metric: "m",
                labels: &BTreeMap::new(),
                samples: &samples,
            },
        );
        let mut reader = Reader::new(10, true);
        read(&mut reader, &message).unwrap();
        let batch = reader.take();
        assert_eq!((batch.utc_ns.len(), batch.valueless), (4, 3));
        assert_eq!(batch.refused[&Refusal::NotFinite], 2);
        assert_eq!(batch.refused[&Refusal::Stale], 1);
        assert_eq!(batch.bits[3] as u64, crate::columns::STALE_BITS);
        assert!(f64::from_bits(batch.bits[2] as u64).is_nan());
    }

    #[test]
    fn requests_round_trip() {
        let labels = BTreeMap::from([("a".into(), "b".into()), ("z".into(), "é".into())]);
        let mut message = Vec::new();
        let samples = [(1_700_000_000_123, 1.5), (1_700_000_000_124, -0.25)];
        write(
            &mut message,
            &Sent {
                metric: "m",
                labels: &labels,
                samples: &samples,
            },
        );
        let mut reader = Reader::new(10, true);
        read(&mut reader, &message).unwrap();
        let batch = reader.take();
        assert_eq!(&*batch.label_sets[0], r#"{"a":"b","z":"é"}"#);
        assert_eq!(
            batch.utc_ns,
            [1_700_000_000_123_000_000, 1_700_000_000_124_000_000]
        );
        assert_eq!(
            batch.bits,
            [1.5_f64.to_bits() as i64, (-0.25_f64).to_bits() as i64]
        );
        for end in 1..message.len() {
            let mut reader = Reader::new(10, true);
            assert!(read(&mut reader, &message[..end]).is_err(), "{end}");
        }
    }
}
