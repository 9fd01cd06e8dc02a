//! Series by number, and batches of points as columns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Series that one reader knows.
pub const MOST_SERIES: usize = 100_000;
/// Points of one batch.
pub const MOST_POINTS: usize = 2_000_000;
/// Characters of a metric's name.
pub const MOST_NAME: usize = 500;
/// Characters of a series' labels as JSON.
pub const MOST_LABELS: usize = 4_000;
/// Characters of a value that is a text.
pub const MOST_TEXT: usize = 10_000;
/// Bytes of one line.
pub const MOST_LINE: usize = 1 << 16;
/// Refused lines of which it is said what was wrong.
const MOST_TOLD: usize = 10;
/// The bits of Prometheus' staleness marker, a NaN.
pub const STALE_BITS: u64 = 0x7ff0_0000_0000_0002;
/// Bits of the NaN that stands for any other value that is not finite, and that no program makes.
pub const NO_VALUE_BITS: u64 = 0x7ff0_0000_0000_0003;

/// Why a point is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It is not what the protocol says.
    Malformed,
    /// Its value is no finite number.
    NotFinite,
    /// Prometheus' staleness marker: its series ends here.
    Stale,
    /// A native histogram, which has no single value.
    Histogram,
    /// Its time is the newest of its series once more, with another value.
    Conflict,
    /// Its time is before the newest of its series.
    Backwards,
    /// Its time and value are the newest of its series once more.
    Duplicate,
    /// A name, its labels, a text or its line is longer than is taken, or it has too many labels.
    TooLong,
    /// It would be of one series more, or one point of a batch more, than is taken.
    TooMany,
}

impl Refusal {
    /// As it is counted under.
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

/// A value of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A finite number.
    Float(f64),
    /// A whole number.
    Integer(i64),
    /// A text.
    Text(&'a str),
    /// Yes or no.
    Boolean(bool),
}

/// Points as columns: row `k` is of the metric `metrics[metric[k]]` with the labels `label_sets[labels[k]]`.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Names of metrics that occur.
    pub metrics: Vec<Arc<str>>,
    /// Labels that occur, as JSON sorted by name without spaces.
    pub label_sets: Vec<Arc<str>>,
    /// Of each point.
    pub metric: Vec<i32>,
    /// Of each point.
    pub labels: Vec<i32>,
    /// Of each point, since 1970-01-01 UTC.
    pub utc_ns: Vec<i64>,
    /// Of each point: 0 float, 1 integer, 2 text, 3 boolean.
    pub kind: Vec<u8>,
    /// Of each point: a float's bits, an integer, a boolean; 0 for a text.
    pub bits: Vec<i64>,
    /// Values of the points that are texts, in their order.
    pub texts: Vec<String>,
    /// How many of the points have no value: a NaN stands for what was refused as not finite or stale, so that the
    /// reader's user knows that something came at this time.
    pub valueless: usize,
    /// Exemplars that came with the points; none is stored.
    pub exemplars: u64,
    /// How many were left out, and why.
    pub refused: BTreeMap<Refusal, u64>,
    /// Of the first of them the line, from 1, and what was wrong there.
    pub told: Vec<(usize, String)>,
}

impl Batch {
    /// Leaves out what stands in a line.
    pub fn refuse(&mut self, line: usize, why: Refusal, what: &str) {
        self.refuse_all(line, why, what, 1);
    }

    /// Leaves out several points of a line.
    pub fn refuse_all(&mut self, line: usize, why: Refusal, what: &str, points: u64) {
        *self.refused.entry(why).or_default() += points;
        if self.told.len() < MOST_TOLD {
            self.told.push((line, what.to_owned()));
        }
    }
}

struct Known {
    metric: u32,
    labels: u32,
    newest_ns: i64,
    /// Fingerprint of the value at that time.
    newest: u64,
}

/// Texts by number.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    /// Place of each in the batch of a number.
    places: Vec<(u64, i32)>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.numbers.get(text) {
            return known;
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

/// A place in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Points that are in it.
    pub points: usize,
    /// How many of them have no value.
    pub valueless: usize,
    texts: usize,
}

/// What was counted since the last call, beside the points.
#[derive(Debug, Default)]
pub struct Counted {
    /// Points that were refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Of the first of them the line, from 1, and what was wrong there.
    pub told: Vec<(usize, String)>,
    /// Exemplars, of which none is stored.
    pub exemplars: u64,
}

/// What a reader makes of the spelling of a series that it has not seen: metric and labels.
pub type Spelled = Result<(String, BTreeMap<String, String>), (Refusal, String)>;

/// Reads what one source sends, batch after batch; knows the series and the newest time of each.
pub struct Reader {
    most_series: usize,
    in_order: bool,
    /// series by the bytes that name them in the protocol
    spelled: HashMap<Box<[u8]>, u32>,
    known: HashMap<(u32, u32), u32>,
    series: Vec<Known>,
    metrics: Texts,
    label_sets: Texts,
    batches: u64,
    batch: Batch,
    /// series, time and value that were newest before each point since the last mark
    before: Vec<(u32, i64, u64)>,
}

impl Reader {
    /// A reader that knows no series yet, and will know `most_series` at most. Where `in_order` is set, a point
    /// whose time is before the newest of its series is refused; one of the same time replaces it where its protocol
    /// says so.
    pub fn new(most_series: usize, in_order: bool) -> Self {
        Reader {
            most_series,
            in_order,
            spelled: HashMap::new(),
            known: HashMap::new(),
            series: Vec::new(),
            metrics: Texts::default(),
            label_sets: Texts::default(),
            batches: 1,
            batch: Batch::default(),
            before: Vec::new(),
        }
    }

    /// How many series it knows.
    pub fn known(&self) -> usize {
        self.series.len()
    }

    /// Metric and labels of the series that it knows, in the order in which they came, from the `first` on.
    pub fn known_from(&self, first: usize) -> impl Iterator<Item = (&str, &str)> {
        self.series.iter().skip(first).map(|known| {
            (
                &*self.metrics.texts[known.metric as usize],
                &*self.label_sets.texts[known.labels as usize],
            )
        })
    }

    /// How far the batch has come, for `back_to`.
    pub fn mark(&mut self) -> Mark {
        self.before.clear();
        self.here()
    }

    /// As `mark`, for counting alone.
    pub fn here(&self) -> Mark {
        Mark {
            points: self.batch.utc_ns.len(),
            valueless: self.batch.valueless,
            texts: self.batch.texts.len(),
        }
    }

    /// Leaves out the points of the batch that came after the last mark of it: sent again, they are new.
    pub fn back_to(&mut self, mark: Mark) {
        while let Some((series, newest_ns, newest)) = self.before.pop() {
            let known = &mut self.series[series as usize];
            (known.newest_ns, known.newest) = (newest_ns, newest);
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

    /// What was counted since the last call; the points stay in the batch.
    pub fn take_counted(&mut self) -> Counted {
        let batch = &mut self.batch;
        Counted {
            refused: std::mem::take(&mut batch.refused),
            told: std::mem::take(&mut batch.told),
            exemplars: std::mem::take(&mut batch.exemplars),
        }
    }

    /// What was read since the last call.
    pub fn take(&mut self) -> Batch {
        self.batches += 1;
        std::mem::take(&mut self.batch)
    }

    /// Leaves out what stands in a line.
    pub(crate) fn refuse(&mut self, line: usize, why: Refusal, what: &str) {
        self.batch.refuse(line, why, what);
    }

    /// Leaves out several points of a line.
    pub(crate) fn refuse_all(&mut self, line: usize, why: Refusal, what: &str, points: u64) {
        self.batch.refuse_all(line, why, what, points);
    }

    /// Counts exemplars.
    pub(crate) fn exemplars(&mut self, count: u64) {
        self.batch.exemplars += count;
    }

    /// The series that `spelling` names; `meaning` says what it means where it is new.
    pub(crate) fn series(
        &mut self,
        spelling: &[u8],
        meaning: impl FnOnce() -> Spelled,
    ) -> Result<u32, (Refusal, String)> {
        if let Some(&known) = self.spelled.get(spelling) {
            return Ok(known);
        }
        let (metric, labels) = meaning()?;
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
        let number = match self.known.get(&pair) {
            Some(&number) => number,
            None if self.series.len() >= self.most_series => {
                let what = format!("more than {} series", self.most_series);
                return Err((Refusal::TooMany, what));
            }
            None => {
                let number = self.series.len() as u32;
                self.series.push(Known {
                    metric: pair.0,
                    labels: pair.1,
                    newest_ns: i64::MIN,
                    newest: 0,
                });
                self.known.insert(pair, number);
                number
            }
        };
        // one series can be spelled in many ways
        if self.spelled.len() >= 4 * self.most_series {
            self.spelled.clear();
        }
        self.spelled.insert(spelling.into(), number);
        Ok(number)
    }

    /// Takes a point of a line, or refuses it: also one with another value for the newest time of its series.
    #[inline]
    pub(crate) fn point(&mut self, line: usize, series: u32, utc_ns: i64, value: Value<'_>) {
        self.take_point(line, series, utc_ns, value, false);
    }

    /// As `point`, where a later value for a time replaces the one before, as in InfluxDB and Carbon.
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
        let known = &mut self.series[series as usize];
        let newest = fingerprint(value);
        if self.in_order && utc_ns <= known.newest_ns {
            let wrong = if utc_ns < known.newest_ns {
                Some((Refusal::Backwards, "a time before the newest of its series"))
            } else if newest == known.newest {
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
        self.before.push((series, known.newest_ns, known.newest));
        if utc_ns >= known.newest_ns {
            (known.newest_ns, known.newest) = (utc_ns, newest);
        }
        let (metric, labels) = (known.metric, known.labels);
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

/// By which two values of one series are told to be the same.
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
