//! Storage profile: the description of a device.

use serde::{Deserialize, Serialize};

use crate::distribution::{Distribution, Part};
use crate::seek::Seek;
use crate::shape::{above_zero as rate, Credits, Limits, Readahead, WriteCache};
use crate::station::Op;

/// Required value of the `schema` field of a profile.
pub const SCHEMA_ID: &str = "penstock/storage-profile/1";
/// Largest number of sequential streams of a profile.
pub const MAX_STREAMS: usize = 4096;
pub(crate) const MAX_SERVERS: usize = 65_536;

/// Reason why a profile is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidProfile {
    /// Message: the value found and the value expected.
    pub message: String,
    /// Line in the JSON text, if available.
    pub line: Option<usize>,
    /// Column in the JSON text, if available.
    pub column: Option<usize>,
}

impl From<String> for InvalidProfile {
    fn from(message: String) -> Self {
        InvalidProfile {
            message,
            line: None,
            column: None,
        }
    }
}

/// Source of a number of the profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name of the number.
    pub what: String,
    /// Data sheet, paper or measurement, or a remark that the number is an assumption.
    #[serde(rename = "where")]
    pub origin: String,
}

/// Cost of one class of requests: service time = draw(overhead) + size / rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceClass {
    /// Time that does not depend on the size.
    pub overhead: Distribution,
    /// Bytes per second of one server. Without it the size costs no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// Cost of filling the device's buffer, paid only if a new page begins in the range of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_fetch: Option<PageFetch>,
}

/// The device reads whole pages into a buffer: a request pays this once if any page begins in its range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageFetch {
    /// Page size in bytes; pages begin at its multiples.
    pub page_bytes: u64,
    /// Time to fetch a page; the pages of one request are fetched in parallel.
    pub overhead: Distribution,
}

/// Costs of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// Requests that continue a stream.
    pub sequential: ServiceClass,
    /// All other requests.
    pub random: ServiceClass,
}

/// Cost of making all written bytes durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flush {
    /// Service time of a flush.
    pub overhead: Distribution,
}

impl Default for Flush {
    fn default() -> Self {
        Flush {
            overhead: Distribution::Constant { value_s: 0.0 },
        }
    }
}

fn one() -> f64 {
    1.0
}
fn one_stream() -> usize {
    1
}
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A storage device: `servers` parallel requests, each with a service time by class, behind one interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageProfile {
    /// Always [`SCHEMA_ID`].
    pub schema: String,
    /// Short name.
    pub name: String,
    /// Description in one or two sentences.
    #[serde(default)]
    pub description: String,
    /// Sources of the numbers.
    #[serde(default)]
    pub source: Vec<Source>,
    /// Factor by which all times are already multiplied (1 = real device).
    #[serde(default = "one")]
    pub time_scale: f64,
    /// Number of requests served in parallel.
    pub servers: usize,
    /// Cost of reads.
    pub read: Direction,
    /// Cost of writes.
    pub write: Direction,
    /// Cost of flushes.
    #[serde(default)]
    pub flush: Flush,
    /// Bytes per second of all servers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_rate_bps: Option<f64>,
    /// Reads and writes per second of all servers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_iops: Option<f64>,
    /// Idle time that the interface can catch up (depth of a token bucket), seconds. It lets a client reach the
    /// full rate that issues one request after the other with pauses in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_burst_s: Option<f64>,
    /// Number of sequential streams that the device recognises at once.
    #[serde(default = "one_stream")]
    pub sequential_streams: usize,
    /// Largest distance between the end of a stream and a request that continues it (the device's own buffer), bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequential_window_bytes: u64,
    /// The arm of a rotating disk. With it the overhead of random requests excludes the seek.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seek: Option<Seek>,
    /// Upper limits in front of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Credits that allow bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits: Option<Credits>,
    /// The device's own memory for writes. With it the costs of writes apply only while it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<WriteCache>,
    /// Internal pages and read-ahead of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readahead: Option<Readahead>,
}

impl StorageProfile {
    /// Read and validate a profile.
    ///
    /// # Errors
    /// The text is not JSON, a field is unknown or missing, or a number is invalid.
    pub fn from_json(text: &str) -> Result<Self, InvalidProfile> {
        let profile: StorageProfile = serde_json::from_str(text).map_err(|error| {
            let full_text = error.to_string();
            let message = full_text
                .split(" at line ")
                .next()
                .unwrap_or(&full_text)
                .to_owned();
            InvalidProfile {
                message,
                line: Some(error.line()),
                column: Some(error.column()),
            }
        })?;
        profile.validate()?;
        Ok(profile)
    }

    /// The profile as JSON, indented by two spaces, with a fixed order of fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Check all numbers.
    ///
    /// # Errors
    /// The first invalid number, with the path of its field.
    pub fn validate(&self) -> Result<(), InvalidProfile> {
        if self.schema != SCHEMA_ID {
            return Err(
                format!("schema is \"{}\"; \"{SCHEMA_ID}\" is expected", self.schema).into(),
            );
        }
        if self.name.trim().is_empty() {
            return Err("name is empty; a short name is expected".to_owned().into());
        }
        if !(self.time_scale.is_finite() && self.time_scale > 0.0) {
            return Err(format!(
                "time_scale is {}; a finite number above 0 is expected",
                self.time_scale
            )
            .into());
        }
        if self.servers == 0 || self.servers > MAX_SERVERS {
            return Err(format!(
                "servers is {}; between 1 and {MAX_SERVERS} is expected",
                self.servers
            )
            .into());
        }
        if self.sequential_streams > MAX_STREAMS {
            return Err(format!(
                "sequential_streams is {}; at most {MAX_STREAMS} is expected",
                self.sequential_streams
            )
            .into());
        }
        rate("interface_rate_bps", self.interface_rate_bps)?;
        rate("interface_iops", self.interface_iops)?;
        rate("interface_burst_s", self.interface_burst_s)?;
        for (path, class) in [
            ("read.sequential", &self.read.sequential),
            ("read.random", &self.read.random),
            ("write.sequential", &self.write.sequential),
            ("write.random", &self.write.random),
        ] {
            class
                .overhead
                .validate()
                .map_err(|e| format!("{path}.overhead.{e}"))?;
            rate(&format!("{path}.rate_bps"), class.rate_bps)?;
            if let Some(fetch) = &class.page_fetch {
                if fetch.page_bytes == 0 {
                    return Err(format!(
                        "{path}.page_fetch.page_bytes is 0; at least 1 is expected"
                    )
                    .into());
                }
                fetch
                    .overhead
                    .validate()
                    .map_err(|e| format!("{path}.page_fetch.overhead.{e}"))?;
            }
        }
        self.flush
            .overhead
            .validate()
            .map_err(|e| format!("flush.overhead.{e}"))?;
        let parts = [
            ("seek", self.seek.as_ref().map(Seek::validate)),
            ("limits", self.limits.as_ref().map(Limits::validate)),
            ("credits", self.credits.as_ref().map(Credits::validate)),
            (
                "write_cache",
                self.write_cache.as_ref().map(WriteCache::validate),
            ),
            (
                "readahead",
                self.readahead.as_ref().map(Readahead::validate),
            ),
        ];
        for (path, checked) in parts {
            checked
                .unwrap_or(Ok(()))
                .map_err(|e| format!("{path}.{e}"))?;
        }
        Ok(())
    }

    /// Slow down the device: all times are multiplied by `factor`, all rates divided by it.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> StorageProfile {
        let class = |c: &ServiceClass| ServiceClass {
            overhead: c.overhead.scaled(factor),
            rate_bps: c.rate_bps.map(|r| r / factor),
            page_fetch: c.page_fetch.as_ref().map(|f| PageFetch {
                page_bytes: f.page_bytes,
                overhead: f.overhead.scaled(factor),
            }),
        };
        let direction = |d: &Direction| Direction {
            sequential: class(&d.sequential),
            random: class(&d.random),
        };
        StorageProfile {
            time_scale: self.time_scale * factor,
            read: direction(&self.read),
            write: direction(&self.write),
            flush: Flush {
                overhead: self.flush.overhead.scaled(factor),
            },
            interface_rate_bps: self.interface_rate_bps.map(|r| r / factor),
            interface_iops: self.interface_iops.map(|r| r / factor),
            interface_burst_s: self.interface_burst_s.map(|s| s * factor),
            seek: self.seek.as_ref().map(|s| s.scaled(factor)),
            limits: self.limits.map(|l| l.scaled(factor)),
            credits: self.credits.map(|c| c.scaled(factor)),
            write_cache: self.write_cache.as_ref().map(|c| c.scaled(factor)),
            readahead: self.readahead.as_ref().map(|r| r.scaled(factor)),
            ..self.clone()
        }
    }

    /// Class of a request; `None` for flushes.
    #[must_use]
    pub fn class(&self, op: Op, sequential: bool) -> Option<&ServiceClass> {
        let direction = match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
            Op::Flush => return None,
        };
        Some(if sequential {
            &direction.sequential
        } else {
            &direction.random
        })
    }

    /// Distribution of the random part of the service time, for requests of `size_bytes`.
    fn drawn(&self, op: Op, sequential: bool, size_bytes: u64) -> Distribution {
        let Some(class) = self.class(op, sequential) else {
            return self.flush.overhead.clone();
        };
        if let (Op::Write, Some(cache)) = (op, &self.write_cache) {
            return cache.overhead.clone();
        }
        let mut own = self.drawn_of(class, size_bytes);
        let seek = self.seek.as_ref().filter(|_| !sequential);
        if let Some(seek) = seek.and_then(|seek| seek.anywhere(op)) {
            own = Distribution::Sum {
                parts: vec![own, seek],
            };
        }
        match &self.readahead {
            Some(ahead) if op == Op::Read && !(sequential && size_bytes < ahead.page_bytes) => {
                Distribution::Sum {
                    parts: vec![own, ahead.fetch.clone()],
                }
            }
            _ => own,
        }
    }

    fn drawn_of(&self, class: &ServiceClass, size_bytes: u64) -> Distribution {
        let Some(fetch) = &class.page_fetch else {
            return class.overhead.clone();
        };
        let share = (size_bytes as f64 / fetch.page_bytes as f64).min(1.0);
        let both = Distribution::Sum {
            parts: vec![class.overhead.clone(), fetch.overhead.clone()],
        };
        if share >= 1.0 {
            return both;
        }
        Distribution::Mixture {
            parts: vec![
                Part {
                    weight: 1.0 - share,
                    of: class.overhead.clone(),
                },
                Part {
                    weight: share,
                    of: both,
                },
            ],
        }
    }

    fn transfer_s(&self, op: Op, sequential: bool, size_bytes: u64) -> f64 {
        let rate_bps = match (op, &self.write_cache) {
            (Op::Write, Some(cache)) => cache.rate_bps,
            _ => self.class(op, sequential).and_then(|c| c.rate_bps),
        };
        rate_bps.map_or(0.0, |rate_bps| size_bytes as f64 / rate_bps)
    }

    /// Mean service time of one server in seconds, without the caps of the interface. Exact, except for
    /// a device with an arm: then the mean over all places of the disk, within 1 in 10,000.
    #[must_use]
    pub fn mean_service_s(&self, op: Op, sequential: bool, size_bytes: u64) -> f64 {
        self.drawn(op, sequential, size_bytes).mean_s()
            + self.transfer_s(op, sequential, size_bytes)
    }

    /// Quantile `p` of the service time of one server in seconds, without the caps of the interface.
    #[must_use]
    pub fn service_quantile_s(&self, op: Op, sequential: bool, size_bytes: u64, p: f64) -> f64 {
        self.drawn(op, sequential, size_bytes).quantile_s(p)
            + self.transfer_s(op, sequential, size_bytes)
    }

    /// Like [`StorageProfile::service_quantile_s`], for several probabilities.
    #[must_use]
    pub fn service_quantiles_s(
        &self,
        op: Op,
        sequential: bool,
        size_bytes: u64,
        p: &[f64],
    ) -> Vec<f64> {
        let transfer_s = self.transfer_s(op, sequential, size_bytes);
        let drawn = self.drawn(op, sequential, size_bytes).quantiles_s(p);
        drawn.into_iter().map(|s| s + transfer_s).collect()
    }

    /// Shortest time between two requests of `size_bytes` that the interface allows, seconds.
    #[must_use]
    pub fn interface_s(&self, size_bytes: u64) -> f64 {
        let by_bytes = self
            .interface_rate_bps
            .map_or(0.0, |r| size_bytes as f64 / r);
        let by_count = self.interface_iops.map_or(0.0, |r| 1.0 / r);
        by_bytes.max(by_count)
    }

    /// Highest rate of these requests per second, with all servers busy, credits left and space in the write cache.
    #[must_use]
    pub fn capacity_iops(&self, op: Op, sequential: bool, size_bytes: u64) -> f64 {
        let per_request = self.mean_service_s(op, sequential, size_bytes) / self.servers as f64;
        let mut slowest = per_request.max(self.interface_s(size_bytes));
        let size = size_bytes as f64;
        if let Some(credits) = &self.credits {
            slowest = slowest
                .max(credits.iops.map_or(0.0, |b| 1.0 / b.burst))
                .max(credits.bytes.map_or(0.0, |b| size / b.burst));
        }
        if let Some(limits) = &self.limits {
            let (bps, iops) = match op {
                Op::Read => (limits.read_bps, limits.read_iops),
                Op::Write => (limits.write_bps, limits.write_iops),
                Op::Flush => (None, None),
            };
            slowest = slowest
                .max(bps.map_or(0.0, |rate| size / rate))
                .max(iops.map_or(0.0, |rate| 1.0 / rate));
        }
        1.0 / slowest
    }
}
