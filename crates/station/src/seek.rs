//! Seek distances and seek times of a rotating disk.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::station::Op;

/// Bits of an offset inside one file of an emulated disk; the higher bits are the file's number.
pub const FILE_BITS: u32 = 40;
/// Bits of a file's number on an emulated disk.
const FILE_NUMBER_BITS: u32 = 22;
/// Largest number of cylinders of a disk.
const MAX_CYLINDERS: u64 = 10_000_000;
/// Number of straight lines that approximate a seek curve for its quantiles.
const PIECES: u32 = 256;

/// Device offset of the first byte of a file of an emulated disk, from a hash of its path.
#[must_use]
pub fn file_base(hash: u64) -> u64 {
    (hash % (1 << FILE_NUMBER_BITS)) << FILE_BITS
}

/// Seek times from a data sheet.
///
/// Over `d` cylinders of `n`, with `x = (d - 1) / (n - 2)`, a seek takes `shortest + a sqrt(x) + b x`. The two numbers
/// follow from the average over all pairs of places and from the longest seek (E. K. Lee and R. H. Katz, An analytic
/// performance model of disk arrays, SIGMETRICS 1993).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeekTimes {
    /// Time of a seek to the next cylinder, seconds.
    pub shortest_s: f64,
    /// Mean time over all pairs of places, seconds.
    pub average_s: f64,
    /// Time of a seek from one end to the other, seconds.
    pub longest_s: f64,
}

impl SeekTimes {
    fn root_s(&self) -> f64 {
        (15.0 * self.average_s - 10.0 * self.shortest_s - 5.0 * self.longest_s) / 3.0
    }

    fn line_s(&self) -> f64 {
        (7.0 * self.shortest_s - 15.0 * self.average_s + 8.0 * self.longest_s) / 3.0
    }

    fn validate(&self) -> Result<(), String> {
        for (name, value) in [
            ("shortest_s", self.shortest_s),
            ("average_s", self.average_s),
            ("longest_s", self.longest_s),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!(
                    "{name} is {value}; a finite number above 0 is expected"
                ));
            }
        }
        // the curve rises from the first cylinder to the last
        let (root_s, line_s) = (self.root_s(), self.line_s());
        let tolerated = -1e-9 * self.longest_s;
        if root_s < tolerated || root_s / 2.0 + line_s < tolerated {
            return Err(format!(
                "average_s is {}; between {:.6} and {:.6} is expected for a shortest seek of {} and a longest of {}",
                self.average_s,
                (10.0 * self.shortest_s + 5.0 * self.longest_s) / 15.0,
                (4.0 * self.shortest_s + 11.0 * self.longest_s) / 15.0,
                self.shortest_s,
                self.longest_s
            ));
        }
        Ok(())
    }

    fn scaled(&self, factor: f64) -> SeekTimes {
        SeekTimes {
            shortest_s: self.shortest_s * factor,
            average_s: self.average_s * factor,
            longest_s: self.longest_s * factor,
        }
    }

    /// Time of a seek over the share `x` of the longest distance, seconds.
    fn over_s(&self, x: f64) -> f64 {
        self.shortest_s + self.root_s() * x.sqrt() + self.line_s() * x
    }

    /// Distribution of seek times between two uniformly random places of the disk.
    fn anywhere(&self) -> Distribution {
        let quantile = |i: u32| {
            let p = f64::from(i) / f64::from(PIECES);
            // the distance of two uniform places has the density 2 (1 - x)
            (p, self.over_s(1.0 - (1.0 - p).sqrt()))
        };
        Distribution::Empirical {
            quantiles: (0..=PIECES).map(quantile).collect(),
        }
    }
}

/// One arm for all cylinders. A request that continues no stream moves it from the end of the last request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seek {
    /// Bytes from the first cylinder to the last.
    pub span_bytes: u64,
    /// Number of cylinders. Requests within one cylinder need no seek.
    pub cylinders: u64,
    /// Seek times before a read.
    pub read: SeekTimes,
    /// Seek times before a write.
    pub write: SeekTimes,
}

impl Seek {
    pub(crate) fn validate(&self) -> Result<(), String> {
        if !(3..=MAX_CYLINDERS).contains(&self.cylinders) {
            return Err(format!(
                "cylinders is {}; between 3 and {MAX_CYLINDERS} is expected",
                self.cylinders
            ));
        }
        if self.span_bytes < self.cylinders {
            return Err(format!(
                "span_bytes is {}; at least one byte per cylinder ({}) is expected",
                self.span_bytes, self.cylinders
            ));
        }
        self.read.validate().map_err(|e| format!("read.{e}"))?;
        self.write.validate().map_err(|e| format!("write.{e}"))
    }

    pub(crate) fn scaled(&self, factor: f64) -> Seek {
        Seek {
            read: self.read.scaled(factor),
            write: self.write.scaled(factor),
            ..self.clone()
        }
    }

    /// Distribution of an operation's seek times between two uniformly random places of the disk.
    pub(crate) fn anywhere(&self, op: Op) -> Option<Distribution> {
        match op {
            Op::Read => Some(self.read.anywhere()),
            Op::Write => Some(self.write.anywhere()),
            Op::Flush => None,
        }
    }
}

/// A compiled seek curve, in nanoseconds: constant, factor of the square root, factor of the distance.
#[derive(Debug, Clone, Copy)]
struct Curve {
    first: f64,
    root: f64,
    line: f64,
}

impl Curve {
    fn new(times: &SeekTimes, longest: f64) -> Self {
        Curve {
            first: 1e9 * times.shortest_s,
            root: 1e9 * times.root_s() / longest.sqrt(),
            line: 1e9 * times.line_s() / longest,
        }
    }
}

/// [`Seek`] compiled for the hot path.
#[derive(Debug, Clone)]
pub(crate) struct Arm {
    span_bytes: u64,
    file_stride: u64,
    cylinders_per_byte: f64,
    read: Curve,
    write: Curve,
}

impl Arm {
    pub fn new(seek: &Seek) -> Self {
        let longest = (seek.cylinders - 2) as f64;
        Arm {
            span_bytes: seek.span_bytes,
            file_stride: seek.span_bytes >> FILE_NUMBER_BITS,
            cylinders_per_byte: seek.cylinders as f64 / seek.span_bytes as f64,
            read: Curve::new(&seek.read, longest),
            write: Curve::new(&seek.write, longest),
        }
    }

    /// An offset beyond the span belongs to an emulated disk, whose files begin anywhere in the span.
    fn cylinder(&self, offset: u64) -> f64 {
        let place = if offset < self.span_bytes {
            offset
        } else {
            let inside = offset & ((1 << FILE_BITS) - 1);
            let begin = (offset >> FILE_BITS).wrapping_mul(self.file_stride);
            begin.wrapping_add(inside) % self.span_bytes
        };
        (place as f64 * self.cylinders_per_byte).floor()
    }

    /// Seek time from one offset to another, nanoseconds.
    #[inline]
    pub fn move_ns(&self, op: Op, from: u64, to: u64) -> f64 {
        let curve = match op {
            Op::Read => self.read,
            Op::Write => self.write,
            Op::Flush => return 0.0,
        };
        let cylinders = (self.cylinder(from) - self.cylinder(to)).abs();
        if cylinders < 1.0 {
            return 0.0;
        }
        let rest = cylinders - 1.0;
        curve.first + curve.root * rest.sqrt() + curve.line * rest
    }
}
