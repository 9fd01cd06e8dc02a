//! Text formats of exporters: the Prometheus text format 0.0.4 and OpenMetrics 1.0.
//!
//! Source: "Exposition formats" of Prometheus; "OpenMetrics 1.0.0". Values that are not finite numbers, such as a
//! quantile without observations, are refused and counted.

use std::collections::BTreeMap;

use crate::columns::{ParsedSeries, Reader, Refusal, Value, MOST_LINE};
use crate::number;

type Rejection = (Refusal, String);

fn malformed(what: &str) -> Rejection {
    (Refusal::Malformed, what.to_owned())
}

/// Settings of a target: labels to add, precedence of labels, and source of times.
pub struct OfTarget<'a> {
    /// Labels to add to all series of the target.
    pub added: &'a [(String, String)],
    /// If set, the target's own label has precedence over an added one. Otherwise it is renamed to `exported_…`.
    pub honor_labels: bool,
    /// Use the times of the target: seconds in OpenMetrics, milliseconds otherwise.
    pub own_times: bool,
}

/// Read the response of one target at `now_ns`.
///
/// Error: the response is incomplete, because OpenMetrics must end with `# EOF`.
pub fn read(
    reader: &mut Reader,
    text: &[u8],
    now_ns: i64,
    open_metrics: bool,
    of: &OfTarget<'_>,
) -> Result<(), String> {
    // several targets have the same series: the added labels are a part of the spelling
    let mut spelling = vec![u8::from(of.honor_labels)];
    for (name, value) in of.added {
        for text in [name, value] {
            spelling.extend((text.len() as u64).to_le_bytes());
            spelling.extend(text.as_bytes());
        }
    }
    let mut spelling = Spelling {
        added: spelling.len(),
        bytes: spelling,
    };
    let mut ended = false;
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line == b"# EOF" && open_metrics {
            ended = true;
            continue;
        }
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let number = number + 1;
        if ended {
            reader.refuse(number, Refusal::Malformed, "a line behind # EOF");
            continue;
        }
        match sample(reader, line, open_metrics, of, &mut spelling) {
            Ok((series, value, time)) => {
                let utc_ns = time.filter(|_| of.own_times).unwrap_or(now_ns);
                reader.point(number, series, utc_ns, Value::Float(value));
            }
            Err((why, what)) => reader.refuse(number, why, &what),
        }
    }
    if open_metrics && !ended {
        return Err("OpenMetrics that break off: no # EOF at the end".into());
    }
    Ok(())
}

/// Added labels, followed by the series of a line.
struct Spelling {
    bytes: Vec<u8>,
    added: usize,
}

impl Spelling {
    fn of(&mut self, key: &[u8]) -> &[u8] {
        self.bytes.truncate(self.added);
        self.bytes.extend(key);
        &self.bytes
    }
}

fn sample(
    reader: &mut Reader,
    line: &[u8],
    open_metrics: bool,
    of: &OfTarget<'_>,
    spelling: &mut Spelling,
) -> Result<(u32, f64, Option<i64>), Rejection> {
    if line.len() > MOST_LINE {
        return Err((
            Refusal::TooLong,
            format!("a line of more than {MOST_LINE} bytes"),
        ));
    }
    let name_end = line
        .iter()
        .position(|byte| matches!(byte, b'{' | b' ' | b'\t'))
        .ok_or_else(|| malformed("a line other than `name{labels} value`"))?;
    let gap = line[name_end..]
        .iter()
        .take_while(|b| b.is_ascii_whitespace())
        .count();
    let labels_from = name_end + gap;
    let labelled = line.get(labels_from) == Some(&b'{');
    let key_end = if labelled {
        end_of_labels(line, labels_from)?
    } else {
        name_end
    };
    let mut rest = &line[key_end..];
    if let Some(exemplar) = memchr::memmem::find(rest, b" # ").filter(|_| open_metrics) {
        rest = &rest[..exemplar];
    }
    let mut fields = rest
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let (Some(value), time, None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(malformed("a line other than `name{labels} value`"));
    };
    let value = number::float(value).ok_or_else(|| malformed("a value that is no number"))?;
    let unit_ns = if open_metrics {
        1_000_000_000
    } else {
        1_000_000
    };
    let time = time
        .map(|time| {
            number::time_ns(time, unit_ns).ok_or_else(|| malformed("a time that is no number"))
        })
        .transpose()?;
    let key = &line[..key_end];
    let series = reader.series(spelling.of(key), || {
        meaning(
            &line[..name_end],
            labelled.then(|| &line[labels_from..key_end]),
            of,
        )
    })?;
    Ok((series, value, time))
}

/// Position after the brace that closes the labels, which begin at `from`.
fn end_of_labels(line: &[u8], from: usize) -> Result<usize, Rejection> {
    let (mut at, mut quoted) = (from, false);
    while at < line.len() {
        match line[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Ok(at + 1),
            _ => {}
        }
        at += 1;
    }
    Err(malformed("labels without their end"))
}

fn is_name(text: &str, colons: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    text.chars().next().is_some_and(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn meaning(name: &[u8], labels: Option<&[u8]>, of: &OfTarget<'_>) -> ParsedSeries {
    let utf8 = |text| std::str::from_utf8(text).map_err(|_| malformed("a name that is not UTF-8"));
    let name = utf8(name)?;
    if !is_name(name, true) {
        return Err(malformed(
            "a metric's name with a character that may not be in it",
        ));
    }
    let mut pairs = BTreeMap::new();
    let inner = labels.map_or(&b""[..], |text| &text[1..text.len() - 1]);
    let mut rest = utf8(inner)?.trim();
    while !rest.is_empty() {
        let (label, behind) = rest
            .split_once('=')
            .ok_or_else(|| malformed("a label without a value"))?;
        let label = label.trim();
        if !is_name(label, false) {
            return Err(malformed(
                "a label's name with a character that may not be in it",
            ));
        }
        let (value, behind) = quoted(behind.trim_start())?;
        if pairs.insert(label.to_owned(), value).is_some() {
            return Err(malformed("a label that stands twice"));
        }
        rest = behind.trim_start();
        if let Some(next) = rest.strip_prefix(',') {
            rest = next.trim_start();
        } else if !rest.is_empty() {
            return Err(malformed("something behind a label's value"));
        }
    }
    Ok((name.to_owned(), together(pairs, of)))
}

/// Merge the labels of a series with those of its target, as Prometheus does.
fn together(mut own: BTreeMap<String, String>, of: &OfTarget<'_>) -> BTreeMap<String, String> {
    let mut exported = Vec::new();
    for (name, value) in of.added {
        // an empty label counts as missing, but with `honor_labels` it removes the added one
        let scraped = own.get(name).filter(|v| of.honor_labels || !v.is_empty());
        match scraped {
            Some(_) if of.honor_labels => continue,
            Some(scraped) => exported.push((name, scraped.clone())),
            None => {}
        }
        own.insert(name.clone(), value.clone());
    }
    exported.sort_by_key(|(name, _)| name.len());
    for (name, value) in exported {
        let mut name = format!("exported_{name}");
        while own.get(&name).is_some_and(|v| !v.is_empty()) {
            name.insert_str(0, "exported_");
        }
        own.insert(name, value);
    }
    own.retain(|_, value| !value.is_empty());
    own
}

/// A quoted text, and the rest of the line after it.
fn quoted(text: &str) -> Result<(String, &str), Rejection> {
    let mut characters = text.char_indices();
    if characters.next().map(|(_, c)| c) != Some('"') {
        return Err(malformed("a label's value without quotes"));
    }
    let mut value = String::new();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match characters.next().map(|(_, c)| c) {
                Some('n') => value.push('\n'),
                Some(c @ ('"' | '\\')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err(malformed("a label's value without its end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(added: &[(String, String)]) -> OfTarget<'_> {
        OfTarget {
            added,
            honor_labels: false,
            own_times: true,
        }
    }

    #[test]
    fn samples_labels_and_errors() {
        let text = b"# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"a\\\"b}\\n\\\\\",} 3 1700000000123\nb 4\nc {z=\"\"} +Inf\n\
                     d{x=\"1\" 3\ne\nf{x=1} 2\ng{x=\"1\",x=\"2\"} 2\n1h 2\ni 1 2 3\nj x\nk NaN\nl 1e3";
        let mut reader = Reader::new(10, true);
        let added = [("instance".to_owned(), "n-0".to_owned())];
        read(&mut reader, text, 5, false, &target(&added)).unwrap();
        let batch = reader.take();
        assert_eq!(
            batch
                .metrics
                .iter()
                .map(AsRef::as_ref)
                .collect::<Vec<&str>>(),
            ["a", "b", "c", "k", "l"]
        );
        assert_eq!(
            &*batch.label_sets[0],
            "{\"instance\":\"n-0\",\"x\":\"1\",\"y\":\"a\\\"b}\\n\\\\\"}"
        );
        assert_eq!(batch.utc_ns, [1_700_000_000_123_000_000, 5, 5, 5, 5]);
        assert_eq!(batch.valueless, 2);
        assert_eq!(batch.refused[&Refusal::Malformed], 7);
        assert_eq!(batch.refused[&Refusal::NotFinite], 2);
    }

    #[test]
    fn identical_targets_have_separate_series() {
        let mut reader = Reader::new(10, true);
        for name in ["n-0", "n-1", "n-0"] {
            let added = [("instance".to_owned(), name.to_owned())];
            read(&mut reader, b"a 1\nb 2\n", 5, false, &target(&added)).unwrap();
        }
        let batch = reader.take();
        assert_eq!(batch.labels, [0, 0, 1, 1]);
        assert_eq!(batch.refused[&Refusal::Duplicate], 2);
        let series: Vec<_> = reader.series_from(2).collect();
        assert_eq!(reader.n_series(), 4);
        assert_eq!(
            series,
            [
                ("a", "{\"instance\":\"n-1\"}"),
                ("b", "{\"instance\":\"n-1\"}")
            ]
        );
    }

    #[test]
    fn scraped_labels_are_renamed_or_honoured() {
        let of = |honor_labels, own: &[(&str, &str)]| {
            let added = [("instance".into(), "t".into()), ("job".into(), "j".into())];
            let target = OfTarget {
                added: &added,
                honor_labels,
                own_times: false,
            };
            let own = own.iter().map(|(n, v)| (n.to_string(), v.to_string()));
            serde_json::to_string(&together(own.collect(), &target)).unwrap()
        };
        let shown = [("exported_instance", "x"), ("instance", "a"), ("job", "b")];
        assert_eq!(
            of(false, &shown),
            r#"{"exported_exported_instance":"a","exported_instance":"x","exported_job":"b","instance":"t","job":"j"}"#
        );
        assert_eq!(
            of(true, &shown),
            r#"{"exported_instance":"x","instance":"a","job":"b"}"#
        );
        assert_eq!(of(true, &[("instance", "")]), r#"{"job":"j"}"#);
        assert_eq!(
            of(false, &[("instance", "")]),
            r#"{"instance":"t","job":"j"}"#
        );
    }

    #[test]
    fn open_metrics_has_seconds_exemplars_and_an_end() {
        let text = b"a_bucket{le=\"1\"} 17 1700000000.5 # {id=\"x\"} 0.3 170\nb 2 # {id=\"y\"} 1\n# EOF\nc 1\n";
        let mut reader = Reader::new(10, true);
        read(&mut reader, text, 5, true, &target(&[])).unwrap();
        let batch = reader.take();
        assert_eq!(batch.utc_ns, [1_700_000_000_500_000_000, 5]);
        assert_eq!(
            batch.refused[&Refusal::Malformed],
            1,
            "{:?}",
            batch.messages
        );
        for end in 0..text.len() - 11 {
            let mut reader = Reader::new(10, true);
            assert!(
                read(&mut reader, &text[..end], 5, true, &target(&[])).is_err(),
                "{end}"
            );
        }
    }

    #[test]
    fn truncated_scrapes_can_be_repeated() {
        let mut reader = Reader::new(10, true);
        let before = reader.mark();
        assert!(read(&mut reader, b"a 1\na 1\n", 5, true, &target(&[])).is_err());
        reader.back_to(before);
        reader.take();
        read(&mut reader, b"a 1\n# EOF", 5, true, &target(&[])).unwrap();
        let batch = reader.take();
        assert_eq!(batch.utc_ns, [5]);
        assert!(batch.refused.is_empty(), "{:?}", batch.messages);
    }
}
