//! What a profile may say beyond service times: limits, credits, caches, and how a device gets slow.

use serde::{Deserialize, Deserializer, Serialize};

use crate::distribution::Distribution;

/// How much time a limit may catch up after a pause, seconds, where its own field says nothing: a client that
/// asks for one request after the other still gets the whole rate.
pub const LIMIT_BURST_S: f64 = 0.005;
/// Most pages that a device's read buffer may hold.
pub const MAX_BUFFER_PAGES: usize = 256;
/// Most that a device may be slowed down at once.
const MAX_FACTOR: f64 = 1e6;

fn one() -> f64 {
    1.0
}
/// A number, or 1 for `null`.
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

/// Upper limits of a disk, each for itself: what a throttle in front of the device lets through.
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
    /// How much time each may catch up after a pause, seconds ([`LIMIT_BURST_S`] if absent).
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

/// A token bucket: while it holds tokens the burst rate is allowed, after that the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Tokens per second that flow in, used or not.
    pub baseline: f64,
    /// Tokens per second that may be spent at most.
    pub burst: f64,
    /// Tokens that it holds at most.
    pub capacity: f64,
    /// Share of the capacity that is there at the beginning.
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

/// Credits of a cloud volume, spent by reads and writes alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Credits {
    /// Tokens are requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<Bucket>,
    /// Tokens are bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bucket>,
    /// A larger request counts as several of this size; as one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit_bytes: Option<u64>,
    /// A smaller request counts as so many bytes (where small ones are not merged).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_bytes: Option<u64>,
}

impl Credits {
    /// As JSON, with what is usual and left out elsewhere.
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

/// A device's own memory for writes: acknowledged at once while there is room, drained behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteCache {
    /// Bytes that it holds.
    pub size_bytes: u64,
    /// Bytes per second that leave it. A write that finds it full waits for room.
    pub drain_rate_bps: f64,
    /// Service time of a write into it.
    pub overhead: Distribution,
    /// Bytes per second of one server into it; no cost by size if absent.
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

/// A flash device's pages and what it reads ahead of a stream.
///
/// A read that continues a stream and is smaller than a page finds its data fetched ahead; every other read pays
/// the fetch, unless all of its pages are in the buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readahead {
    /// Internal page.
    pub page_bytes: u64,
    /// Time to bring pages from the flash into the buffer; those of one request come side by side.
    pub fetch: Distribution,
    /// Pages that stay in the buffer after they were read, the least recently used leaves.
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

/// Times at which the device does nothing, again and again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// From the beginning of one to that of the next, seconds; the first begins with the change.
    pub period_s: f64,
    /// How long it lasts, seconds.
    pub length_s: f64,
}

/// Some requests, chosen by the seed, take longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stray {
    /// Probability of a request to be one of them.
    pub probability: f64,
    /// By how much its service time is multiplied.
    pub factor: f64,
}

/// A device that fails slowly: its service times and its interface, not the limits in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// By how much times are multiplied; 1 where it is absent or `null`.
    #[serde(default = "one", deserialize_with = "one_for_null")]
    pub factor: f64,
    /// How long the factor takes to grow from 1, in a straight line, seconds; at once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_s: Option<f64>,
    /// Stalls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Slow requests among others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<Stray>,
    /// When it began on the station's clock, nanoseconds; filled in when it is applied.
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
