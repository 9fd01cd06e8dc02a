//! Prometheus remote write 2.0: a `Request` in protocol buffers. Texts are indices into a table of symbols.
//!
//! ```text
//! Request    { repeated string symbols = 4; repeated TimeSeries timeseries = 5; }
//! TimeSeries { repeated uint32 labels_refs = 1; repeated Sample samples = 2; repeated Histogram histograms = 3;
//!              repeated Exemplar exemplars = 4; Metadata metadata = 5; int64 created_timestamp = 6; }
//! ```
//!
//! Labels are pairs of references, name and value. The first symbol is empty. Samples are the same as in 1.0. Native
//! histograms are refused and counted. Exemplars are counted.
//!
//! Source: "Prometheus Remote-Write 2.0 specification".

use crate::columns::{Reader, Refusal};
use crate::remote_write::{histogram, of_labels, registered, sample, Series};
use crate::wire::{put_bytes, Field, Fields};

/// Maximum number of symbols of one message.
const MOST_SYMBOLS: usize = 2_000_000;

/// Read a message. Error: the reason why it is not a valid one.
pub fn read(reader: &mut Reader, message: &[u8]) -> Result<(), String> {
    // the symbols may follow the series that refer to them
    let mut symbols: Vec<&[u8]> = Vec::new();
    for field in Fields(message) {
        match field? {
            (4, Field::Bytes(symbol)) if symbols.len() < MOST_SYMBOLS => symbols.push(symbol),
            (4, Field::Bytes(_)) => return Err(format!("more than {MOST_SYMBOLS} symbols")),
            (1..=3, _) => {
                return Err("a message of remote write 1.0 under the content type of 2.0".into())
            }
            _ => {}
        }
    }
    if symbols.first().is_some_and(|first| !first.is_empty()) {
        return Err("a first symbol that is not empty".into());
    }
    let (mut refs, mut spelling) = (Vec::new(), Vec::new());
    for (number, field) in Fields(message).enumerate() {
        if let (5, Field::Bytes(series)) = field? {
            one_series(
                reader,
                number + 1,
                series,
                &symbols,
                &mut refs,
                &mut spelling,
            )?;
        }
    }
    Ok(())
}

fn one_series(
    reader: &mut Reader,
    number: usize,
    message: &[u8],
    symbols: &[&[u8]],
    refs: &mut Vec<u64>,
    spelling: &mut Vec<u8>,
) -> Result<(), String> {
    refs.clear();
    for field in Fields(message) {
        match field? {
            (1, Field::Varint(one)) => refs.push(one),
            (1, Field::Bytes(packed)) => {
                let mut packed = Fields(packed);
                while !packed.0.is_empty() {
                    refs.push(packed.varint()?);
                }
            }
            _ => {}
        }
    }
    let series = series_of(reader, symbols, refs, spelling);
    for field in Fields(message) {
        match field? {
            (2, Field::Bytes(part)) => sample(reader, number, &series, part)?,
            (3, Field::Bytes(_)) => histogram(reader, number, &series),
            (4, Field::Bytes(_)) => reader.exemplars(1),
            _ => {}
        }
    }
    Ok(())
}

fn series_of(
    reader: &mut Reader,
    symbols: &[&[u8]],
    refs: &[u64],
    spelling: &mut Vec<u8>,
) -> Series {
    let malformed = |what: &str| (Refusal::Malformed, what.to_owned());
    if refs.len() % 2 != 0 {
        return Err(malformed("a label without a value"));
    }
    spelling.clear();
    let mut labels = Vec::with_capacity(refs.len() / 2);
    for pair in refs.chunks_exact(2) {
        let text = |n: u64| {
            let symbol = usize::try_from(n).ok().and_then(|n| symbols.get(n));
            symbol
                .copied()
                .ok_or_else(|| malformed("a reference to no symbol"))
        };
        let (name, value) = (text(pair[0])?, text(pair[1])?);
        put_bytes(spelling, 1, name);
        put_bytes(spelling, 2, value);
        labels.push((name, value));
    }
    registered(reader, spelling, || of_labels(&labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(series: &[&[u8]]) -> Vec<u8> {
        let mut encoded = Vec::new();
        for series in series {
            put_bytes(&mut encoded, 5, series);
        }
        for symbol in ["", "__name__", "m", "a", "b"] {
            put_bytes(&mut encoded, 4, symbol.as_bytes());
        }
        encoded
    }

    /// Sample of value 1.5 at `ms` milliseconds.
    fn at(ms: u8) -> Vec<u8> {
        let mut sample = vec![1 << 3 | 1];
        sample.extend(1.5_f64.to_le_bytes());
        sample.extend([2 << 3, ms]);
        sample
    }

    #[test]
    fn series_are_resolved_by_symbols() {
        let mut series = Vec::new();
        put_bytes(&mut series, 1, &[1, 2, 3, 4]);
        put_bytes(&mut series, 2, &at(7));
        put_bytes(&mut series, 2, &at(8));
        put_bytes(&mut series, 3, b"");
        put_bytes(&mut series, 4, b"");
        put_bytes(&mut series, 5, b"");
        // unpacked references
        let mut other = vec![1 << 3, 1, 1 << 3, 2];
        put_bytes(&mut other, 2, &at(9));
        let mut strange = Vec::new();
        put_bytes(&mut strange, 1, &[1, 9]);
        put_bytes(&mut strange, 2, &at(9));
        put_bytes(&mut strange, 2, &at(10));
        let request = message(&[&series, &other, &strange]);
        let mut reader = Reader::new(10, true);
        read(&mut reader, &request).unwrap();
        let batch = reader.take();
        let labels: Vec<&str> = batch.label_sets.iter().map(AsRef::as_ref).collect();
        assert_eq!(labels, [r#"{"a":"b"}"#, "{}"]);
        assert_eq!(batch.utc_ns, [7_000_000, 8_000_000, 9_000_000]);
        assert_eq!(batch.refused[&Refusal::Histogram], 1);
        assert_eq!(batch.refused[&Refusal::Malformed], 2);
        assert_eq!(batch.exemplars, 1);
    }

    #[test]
    fn other_messages_are_refused() {
        let mut old = Vec::new();
        put_bytes(&mut old, 1, b"");
        let mut first = Vec::new();
        put_bytes(&mut first, 4, b"x");
        for wrong in [&old[..], &first, b"\x2a\xff", b"\x2a\x02\x0a\x05"] {
            assert!(
                read(&mut Reader::new(10, true), wrong).is_err(),
                "{wrong:?}"
            );
        }
        assert!(read(&mut Reader::new(10, true), b"").is_ok());
    }
}
