//! Optional parts of a profile: limits, credits, caches and fail-slow behaviour.

use serde::{Deserialize, Deserializer, Serialize};

use crate::distribution::Distribution;

/// Default time that a limit can catch up after a pause, seconds. It lets a client reach the full rate that issues
/// one request after the other.
pub const LIMIT_BURST_S: f64 = 0.005;
/// Largest number of pages of a device's read buffer.
pub const MAX_BUFFER_PAGES: usize = 256;
/// Largest factor by which a device can be slowed down.
const MAX_FACTOR: f64 = 1e6;

fn one() -> f64 {
    1.0
}
/// Deserialize a number; `null` becomes 1.
fn one_for_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(1.0))
}
fn is_one(value: &f64) -> bool {
    *value == 1.0
}
fn is_zero(value: &usize) -> bool {
    *value == 0
}

pub(crate) fn above_zero(name: &str, value: Option<f64>) -> Result<(), String> {
    match value {
        Some(v) if !(v.is_finite() && v > 0.0) => Err(format!(
            "{name} is {v}; a finite number above 0 is expected (leave it out for none)"
        )),
        _ => Ok(()),
    }
}

fn share(name: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name} is {value}; between 0 and 1 is expected"))
    }
}

/// Upper limits of a disk, independent of each other, as a throttle in front of the device applies them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes read per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bps: Option<f64>,
    /// Bytes written per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bps: Option<f64>,
    /// Reads per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<f64>,
    /// Writes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<f64>,
    /// Time that each limit can catch up after a pause, seconds ([`LIMIT_BURST_S`] if absent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_s: Option<f64>,
}

impl Limits {
    /// Names of the four limits, in the order of [`Limits::each`].
    pub const NAMES: [&'static str; 4] = ["read_bps", "write_bps", "read_iops", "write_iops"];

    /// The four limits.
    #[must_use]
    pub fn each(&self) -> [Option<f64>; 4] {
        [
            self.read_bps,
            self.write_bps,
            self.read_iops,
            self.write_iops,
        ]
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        for (name, value) in Self::NAMES.iter().zip(self.each()) {
            above_zero(name, value)?;
        }
        above_zero("burst_s", self.burst_s)
    }

    pub(crate) fn scaled(&self, factor: f64) -> Limits {
        let slower = |rate: Option<f64>| rate.map(|r| r / factor);
        Limits {
            read_bps: slower(self.read_bps),
            write_bps: slower(self.write_bps),
            read_iops: slower(self.read_iops),
            write_iops: slower(self.write_iops),
            burst_s: self.burst_s.map(|s| s * factor),
        }
    }
}

/// A token bucket. While it has tokens the burst rate is allowed, after that the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Tokens that flow in per second, even if none are used.
    pub baseline: f64,
    /// Highest rate of spending tokens, per second.
    pub burst: f64,
    /// Capacity in tokens.
    pub capacity: f64,
    /// Initial level, as a share of the capacity.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub initial: f64,
}

impl Bucket {
    fn validate(&self, name: &str) -> Result<(), String> {
        for (field, value) in [
            ("baseline", self.baseline),
            ("burst", self.burst),
            ("capacity", self.capacity),
        ] {
            above_zero(&format!("{name}.{field}"), Some(value))?;
        }
        if self.burst < self.baseline {
            return Err(format!(
                "{name}.burst is {}; at least the baseline {} is expected",
                self.burst, self.baseline
            ));
        }
        share(&format!("{name}.initial"), self.initial)
    }

    fn scaled(&self, factor: f64) -> Bucket {
        Bucket {
            baseline: self.baseline / factor,
            burst: self.burst / factor,
            ..*self
        }
    }
}

/// Credits of a cloud volume, shared by reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Credits {
    /// Bucket of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<Bucket>,
    /// Bucket of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bucket>,
    /// A larger request counts as several of this size; if absent, as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit_bytes: Option<u64>,
    /// A smaller request counts as this many bytes, for volumes that do not merge small requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_bytes: Option<u64>,
}

impl Credits {
    /// Credits as JSON, without the fields that have their default values.
    pub fn in_full(&self) -> serde_json::Value {
        let mut all = serde_json::json!(self);
        for (name, bucket) in [("iops", &self.iops), ("bytes", &self.bytes)] {
            if let Some(bucket) = bucket {
                all[name]["initial"] = bucket.initial.into();
            }
        }
        all
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        if let Some(bucket) = &self.iops {
            bucket.validate("iops")?;
        }
        if let Some(bucket) = &self.bytes {
            bucket.validate("bytes")?;
        }
        for (name, bytes) in [
            ("unit_bytes", self.unit_bytes),
            ("least_bytes", self.least_bytes),
        ] {
            if bytes == Some(0) {
                return Err(format!("{name} is 0; at least 1 is expected"));
            }
        }
        Ok(())
    }

    pub(crate) fn scaled(&self, factor: f64) -> Credits {
        Credits {
            iops: self.iops.map(|b| b.scaled(factor)),
            bytes: self.bytes.map(|b| b.scaled(factor)),
            ..*self
        }
    }
}

/// A device's own memory for writes. A write that fits is acknowledged at once and drained in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteCache {
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Drain rate, bytes per second. A write that exceeds the capacity waits.
    pub drain_rate_bps: f64,
    /// Service time of a write into the cache.
    pub overhead: Distribution,
    /// Bytes per second of one server into the cache. Without it the size costs no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
}

impl WriteCache {
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.size_bytes == 0 {
            return Err("size_bytes is 0; at least 1 is expected".into());
        }
        above_zero("drain_rate_bps", Some(self.drain_rate_bps))?;
        above_zero("rate_bps", self.rate_bps)?;
        self.overhead
            .validate()
            .map_err(|e| format!("overhead.{e}"))
    }

    pub(crate) fn scaled(&self, factor: f64) -> WriteCache {
        WriteCache {
            size_bytes: self.size_bytes,
            drain_rate_bps: self.drain_rate_bps / factor,
            overhead: self.overhead.scaled(factor),
            rate_bps: self.rate_bps.map(|r| r / factor),
        }
    }
}

/// Pages and read-ahead of a flash device.
///
/// A read that continues a stream and is smaller than a page needs no fetch, because the device read ahead. Every other
/// read pays the fetch, unless the buffer has all its pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readahead {
    /// Internal page size, bytes.
    pub page_bytes: u64,
    /// Time to bring pages from the flash into the buffer; the pages of one request come in parallel.
    pub fetch: Distribution,
    /// Capacity of the read buffer in pages; it evicts the least recently used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub buffer_pages: usize,
}

impl Readahead {
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.page_bytes == 0 {
            return Err("page_bytes is 0; at least 1 is expected".into());
        }
        if self.buffer_pages > MAX_BUFFER_PAGES {
            return Err(format!(
                "buffer_pages is {}; at most {MAX_BUFFER_PAGES} is expected",
                self.buffer_pages
            ));
        }
        self.fetch.validate().map_err(|e| format!("fetch.{e}"))
    }

    pub(crate) fn scaled(&self, factor: f64) -> Readahead {
        Readahead {
            fetch: self.fetch.scaled(factor),
            ..*self
        }
    }
}

/// Periodic stalls, during which the device does no work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Time from the beginning of one stall to the next, seconds. The first stall begins with the change.
    pub period_s: f64,
    /// Duration of a stall, seconds.
    pub length_s: f64,
}

/// Slow requests, which the seed selects.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stray {
    /// Probability that a request is slow.
    pub probability: f64,
    /// Factor of its service time.
    pub factor: f64,
}

/// A fail-slow device. Its service times and its interface slow down; the limits in front of it do not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Factor by which times are multiplied; 1 if absent or `null`.
    #[serde(default = "one", deserialize_with = "one_for_null")]
    pub factor: f64,
    /// Time in which the factor grows linearly from 1, seconds; at once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_s: Option<f64>,
    /// Stalls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Slow requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<Stray>,
    /// Begin of the slowness on the station's clock, nanoseconds; set when the change is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<u64>,
}

impl Default for Slow {
    fn default() -> Self {
        Slow {
            factor: 1.0,
            ramp_s: None,
            stall: None,
            random: None,
            since_ns: None,
        }
    }
}

impl Slow {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let factor = |name: &str, value: f64| {
            if value.is_finite() && value > 0.0 && value <= MAX_FACTOR {
                Ok(())
            } else {
                Err(format!(
                    "{name} is {value}; above 0 and at most {MAX_FACTOR} is expected"
                ))
            }
        };
        factor("factor", self.factor)?;
        above_zero("ramp_s", self.ramp_s)?;
        if let Some(stall) = &self.stall {
            above_zero("stall.period_s", Some(stall.period_s))?;
            above_zero("stall.length_s", Some(stall.length_s))?;
            if stall.length_s >= stall.period_s {
                return Err(format!(
                    "stall.length_s is {}; less than the period {} is expected",
                    stall.length_s, stall.period_s
                ));
            }
        }
        if let Some(stray) = &self.random {
            share("random.probability", stray.probability)?;
            factor("random.factor", stray.factor)?;
        }
        Ok(())
    }
}
