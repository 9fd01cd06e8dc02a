//! Series by number, and batches of points as columns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of series of one reader.
pub const MOST_SERIES: usize = 100_000;
/// Maximum number of points of one batch.
pub const MOST_POINTS: usize = 2_000_000;
/// Maximum length of a metric's name in characters.
pub const MOST_NAME: usize = 500;
/// Maximum length of a series' labels as JSON, in characters.
pub const MOST_LABELS: usize = 4_000;
/// Maximum length of a text value in characters.
pub const MOST_TEXT: usize = 10_000;
/// Maximum length of one line in bytes.
pub const MOST_LINE: usize = 1 << 16;
/// Maximum number of refused lines with a description.
const MOST_MESSAGES: usize = 10;
/// Bits of Prometheus' staleness marker, a NaN.
pub const STALE_BITS: u64 = 0x7ff0_0000_0000_0002;
/// Bits of the NaN that replaces all other non-finite values. No program produces it.
pub const NO_VALUE_BITS: u64 = 0x7ff0_0000_0000_0003;

/// Reason why a point is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The point violates the protocol.
    Malformed,
    /// The value is not a finite number.
    NotFinite,
    /// The value is Prometheus' staleness marker: the series ends here.
    Stale,
    /// A native histogram, which has no single value.
    Histogram,
    /// The point has the newest time of its series, but a different value; or its series has the name of another.
    Conflict,
    /// The time is before the newest time of the series.
    Backwards,
    /// The point has the time and the value of the newest point of the series.
    Duplicate,
    /// A name, the labels, a text or the line is too long, or there are too many labels.
    TooLong,
    /// The point exceeds the maximum number of series, or of points in a batch.
    TooMany,
}

impl Refusal {
    /// Name of the reason in counts.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::NotFinite => "not finite",
            Refusal::Stale => "stale",
            Refusal::Histogram => "native histogram",
            Refusal::Conflict => "conflicting",
            Refusal::Backwards => "backwards",
            Refusal::Duplicate => "duplicate",
            Refusal::TooLong => "too long",
            Refusal::TooMany => "too many",
        }
    }
}

/// Value of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A finite number.
    Float(f64),
    /// An integer.
    Integer(i64),
    /// A text.
    Text(&'a str),
    /// A Boolean.
    Boolean(bool),
}

/// Points as columns: row `k` is of the metric `metrics[metric[k]]` with the labels `label_sets[labels[k]]`.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Names of metrics that occur.
    pub metrics: Vec<Arc<str>>,
    /// Labels that occur, as JSON sorted by name without spaces.
    pub label_sets: Vec<Arc<str>>,
    /// Index into `metrics`, per point.
    pub metric: Vec<i32>,
    /// Index into `label_sets`, per point.
    pub labels: Vec<i32>,
    /// Time since 1970-01-01 UTC, per point [ns].
    pub utc_ns: Vec<i64>,
    /// Type of the value, per point: 0 float, 1 integer, 2 text, 3 boolean.
    pub kind: Vec<u8>,
    /// Value per point: the bits of a float, an integer, or a boolean; 0 for a text.
    pub bits: Vec<i64>,
    /// Values of the text points, in order.
    pub texts: Vec<String>,
    /// Number of points without a value. A NaN replaces a value that was refused as not finite or stale, and shows that
    /// a point arrived at this time.
    pub valueless: usize,
    /// Number of exemplars that came with the points. They are not stored.
    pub exemplars: u64,
    /// Number of refused points by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Line number (from 1) and description of the first refused lines.
    pub messages: Vec<(usize, String)>,
}

impl Batch {
    /// Count a refused point of a line.
    pub fn refuse(&mut self, line: usize, why: Refusal, what: &str) {
        self.refuse_all(line, why, what, 1);
    }

    /// Count several refused points of a line.
    pub fn refuse_all(&mut self, line: usize, why: Refusal, what: &str, points: u64) {
        *self.refused.entry(why).or_default() += points;
        if self.messages.len() < MOST_MESSAGES {
            self.messages.push((line, what.to_owned()));
        }
    }
}

struct SeriesState {
    metric: u32,
    labels: u32,
    /// Length of the measurement in the metric, 0 in protocols without measurements.
    measurement: usize,
    newest_ns: i64,
    /// Fingerprint of the newest value.
    newest: u64,
}

/// Texts with numbers.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    /// Number of the last batch that uses the text, and the index there; per text.
    places: Vec<(u64, i32)>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let (number, text) = (self.texts.len() as u32, Arc::<str>::from(text));
        self.numbers.insert(text.clone(), number);
        self.texts.push(text);
        self.places.push((0, 0));
        number
    }

    fn place(&mut self, number: u32, batch: u64, used: &mut Vec<Arc<str>>) -> i32 {
        let place = &mut self.places[number as usize];
        if place.0 != batch {
            *place = (batch, used.len() as i32);
            used.push(self.texts[number as usize].clone());
        }
        place.1
    }
}

/// Position in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Number of points so far.
    pub points: usize,
    /// Number of points without a value so far.
    pub valueless: usize,
    texts: usize,
}

/// Counters of the points since the last call.
#[derive(Debug, Default)]
pub struct Counted {
    /// Number of refused points by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Line number (from 1) and description of the first refused lines.
    pub messages: Vec<(usize, String)>,
    /// Number of exemplars. They are not stored.
    pub exemplars: u64,
}

/// Labels of a series.
type Labels = BTreeMap<String, String>;

/// Metric and labels of a series, parsed from its text in the protocol, or the reason to refuse the series.
pub type ParsedSeries = Result<(String, Labels), (Refusal, String)>;

/// Metric and labels of a series, and the length of the measurement in the metric, or the reason to refuse the series.
pub(crate) type ParsedField = Result<((String, Labels), usize), (Refusal, String)>;

/// Reader of the batches of one source. It stores the series and the newest time of each.
pub struct Reader {
    most_series: usize,
    in_order: bool,
    /// series number by the bytes that identify the series in the protocol
    spelled: HashMap<Box<[u8]>, u32>,
    by_pair: HashMap<(u32, u32), u32>,
    series: Vec<SeriesState>,
    metrics: Texts,
    label_sets: Texts,
    batches: u64,
    batch: Batch,
    /// series, newest time and newest value before each point since the last mark
    before: Vec<(u32, i64, u64)>,
}

impl Reader {
    /// Create a reader without series, for at most `most_series`. With `in_order`, a point is refused if its time is
    /// before the newest time of its series. A point with the newest time replaces the last one if the protocol allows
    /// it.
    pub fn new(most_series: usize, in_order: bool) -> Self {
        Reader {
            most_series,
            in_order,
            spelled: HashMap::new(),
            by_pair: HashMap::new(),
            series: Vec::new(),
            metrics: Texts::default(),
            label_sets: Texts::default(),
            batches: 1,
            batch: Batch::default(),
            before: Vec::new(),
        }
    }

    /// Number of recorded series.
    pub fn n_series(&self) -> usize {
        self.series.len()
    }

    /// Metric and labels of the recorded series in order of arrival, beginning with number `first`.
    pub fn series_from(&self, first: usize) -> impl Iterator<Item = (&str, &str)> {
        self.series.iter().skip(first).map(|series| {
            (
                &*self.metrics.texts[series.metric as usize],
                &*self.label_sets.texts[series.labels as usize],
            )
        })
    }

    /// Mark the current position in the batch, for `back_to`.
    pub fn mark(&mut self) -> Mark {
        self.before.clear();
        self.position()
    }

    /// Current position in the batch, for counts only.
    pub fn position(&self) -> Mark {
        Mark {
            points: self.batch.utc_ns.len(),
            valueless: self.batch.valueless,
            texts: self.batch.texts.len(),
        }
    }

    /// Remove the points after the last mark from the batch. A sender can then repeat them.
    pub fn back_to(&mut self, mark: Mark) {
        while let Some((series, newest_ns, newest)) = self.before.pop() {
            let state = &mut self.series[series as usize];
            (state.newest_ns, state.newest) = (newest_ns, newest);
        }
        let batch = &mut self.batch;
        batch.valueless = mark.valueless;
        batch.metric.truncate(mark.points);
        batch.labels.truncate(mark.points);
        batch.utc_ns.truncate(mark.points);
        batch.kind.truncate(mark.points);
        batch.bits.truncate(mark.points);
        batch.texts.truncate(mark.texts);
    }

    /// Take the counters since the last call. The points stay in the batch.
    pub fn take_counted(&mut self) -> Counted {
        let batch = &mut self.batch;
        Counted {
            refused: std::mem::take(&mut batch.refused),
            messages: std::mem::take(&mut batch.messages),
            exemplars: std::mem::take(&mut batch.exemplars),
        }
    }

    /// Take the points since the last call.
    pub fn take(&mut self) -> Batch {
        self.batches += 1;
        std::mem::take(&mut self.batch)
    }

    /// Count a refused point of a line.
    pub(crate) fn refuse(&mut self, line: usize, why: Refusal, what: &str) {
        self.batch.refuse(line, why, what);
    }

    /// Count several refused points of a line.
    pub(crate) fn refuse_all(&mut self, line: usize, why: Refusal, what: &str, points: u64) {
        self.batch.refuse_all(line, why, what, points);
    }

    /// Counts exemplars.
    pub(crate) fn exemplars(&mut self, count: u64) {
        self.batch.exemplars += count;
    }

    /// Number of the series that `spelling` identifies. `meaning` parses the spelling of a new series.
    pub(crate) fn series(
        &mut self,
        spelling: &[u8],
        meaning: impl FnOnce() -> ParsedSeries,
    ) -> Result<u32, (Refusal, String)> {
        self.series_of(spelling, || meaning().map(|parsed| (parsed, 0)))
    }

    /// Number of a series like `series`. `meaning` also returns the length of the measurement in the metric: a metric that
    /// two measurements have, as `a_b` of the field `b` of `a` and of the measurement `a_b`, is that of the first one.
    pub(crate) fn series_of(
        &mut self,
        spelling: &[u8],
        meaning: impl FnOnce() -> ParsedField,
    ) -> Result<u32, (Refusal, String)> {
        if let Some(&existing) = self.spelled.get(spelling) {
            return Ok(existing);
        }
        let ((metric, labels), measurement) = meaning()?;
        if metric.is_empty() {
            return Err((Refusal::Malformed, "a metric without a name".into()));
        }
        if metric.chars().count() > MOST_NAME {
            return Err((
                Refusal::TooLong,
                format!("a metric's name of more than {MOST_NAME} characters"),
            ));
        }
        let unprintable = |c: char| c.is_control();
        if metric.contains(unprintable) {
            return Err((
                Refusal::Malformed,
                "a control character in a metric's name".into(),
            ));
        }
        let labels = serde_json::to_string(&labels).expect("texts are JSON");
        if labels.chars().count() > MOST_LABELS {
            return Err((
                Refusal::TooLong,
                format!("labels of more than {MOST_LABELS} characters"),
            ));
        }
        let pair = (
            self.metrics.number(&metric),
            self.label_sets.number(&labels),
        );
        let number = match self.by_pair.get(&pair) {
            Some(&number) if self.series[number as usize].measurement != measurement => {
                let what = format!("a field whose metric {metric} is that of another measurement");
                return Err((Refusal::Conflict, what));
            }
            Some(&number) => number,
            None if self.series.len() >= self.most_series => {
                let what = format!("more than {} series", self.most_series);
                return Err((Refusal::TooMany, what));
            }
            None => {
                let number = self.series.len() as u32;
                self.series.push(SeriesState {
                    metric: pair.0,
                    labels: pair.1,
                    measurement,
                    newest_ns: i64::MIN,
                    newest: 0,
                });
                self.by_pair.insert(pair, number);
                number
            }
        };
        // one series can have many spellings
        if self.spelled.len() >= 4 * self.most_series {
            self.spelled.clear();
        }
        self.spelled.insert(spelling.into(), number);
        Ok(number)
    }

    /// Add or refuse a point. A different value for the newest time of the series is refused.
    #[inline]
    pub(crate) fn point(&mut self, line: usize, series: u32, utc_ns: i64, value: Value<'_>) {
        self.take_point(line, series, utc_ns, value, false);
    }

    /// Add a point like `point`, but replace an earlier value for the same time, as InfluxDB and Carbon do.
    #[inline]
    pub(crate) fn latest(&mut self, line: usize, series: u32, utc_ns: i64, value: Value<'_>) {
        self.take_point(line, series, utc_ns, value, true);
    }

    #[inline]
    fn take_point(
        &mut self,
        line: usize,
        series: u32,
        utc_ns: i64,
        value: Value<'_>,
        replaces: bool,
    ) {
        let state = &mut self.series[series as usize];
        let newest = fingerprint(value);
        if self.in_order && utc_ns <= state.newest_ns {
            let wrong = if utc_ns < state.newest_ns {
                Some((Refusal::Backwards, "a time before the newest of its series"))
            } else if newest == state.newest {
                Some((Refusal::Duplicate, "a point that came before"))
            } else if !replaces {
                Some((
                    Refusal::Conflict,
                    "a second, different value of its series for one time",
                ))
            } else {
                None
            };
            if let Some((why, what)) = wrong {
                return self.batch.refuse(line, why, what);
            }
        }
        if self.batch.utc_ns.len() >= MOST_POINTS {
            let what = "more points than a batch may have";
            return self.batch.refuse(line, Refusal::TooMany, what);
        }
        let (kind, bits) = match value {
            Value::Float(value) if value.is_finite() => (0, value.to_bits() as i64),
            Value::Float(value) => {
                let stale = value.to_bits() == STALE_BITS;
                let (why, what) = if stale {
                    (Refusal::Stale, "a staleness marker, by which a series ends")
                } else {
                    (Refusal::NotFinite, "a value that is no finite number")
                };
                self.batch.refuse(line, why, what);
                self.batch.valueless += 1;
                (0, if stale { STALE_BITS } else { NO_VALUE_BITS } as i64)
            }
            Value::Integer(value) => (1, value),
            Value::Text(text) => {
                if text.chars().count() > MOST_TEXT {
                    let what = "a text that is too long";
                    return self.batch.refuse(line, Refusal::TooLong, what);
                }
                self.batch.texts.push(text.to_owned());
                (2, 0)
            }
            Value::Boolean(value) => (3, i64::from(value)),
        };
        self.before.push((series, state.newest_ns, state.newest));
        if utc_ns >= state.newest_ns {
            (state.newest_ns, state.newest) = (utc_ns, newest);
        }
        let (metric, labels) = (state.metric, state.labels);
        let batch = &mut self.batch;
        let metric = self.metrics.place(metric, self.batches, &mut batch.metrics);
        let labels = self
            .label_sets
            .place(labels, self.batches, &mut batch.label_sets);
        batch.metric.push(metric);
        batch.labels.push(labels);
        batch.utc_ns.push(utc_ns);
        batch.kind.push(kind);
        batch.bits.push(bits);
    }
}

/// Fingerprint to compare two values of one series.
fn fingerprint(value: Value<'_>) -> u64 {
    match value {
        Value::Float(value) => value.to_bits(),
        Value::Integer(value) => value as u64,
        Value::Boolean(value) => u64::from(value),
        Value::Text(text) => {
            let mut hash = std::hash::DefaultHasher::new();
            std::hash::Hasher::write(&mut hash, text.as_bytes());
            std::hash::Hasher::finish(&hash)
        }
    }
}
