//! Methods of dividing a file into chunks. Their names in options: `off`, `fixed:1MiB`, `fastcdc:16KiB,64KiB,256KiB`.

use std::fmt;
use std::str::FromStr;

use crate::fastcdc::FastCdc;
use crate::seqcdc::SeqCdc;

/// Minimum and maximum size of a chunk in bytes.
const LEAST_BYTES: usize = 64;
const MOST_BYTES: usize = 16 << 20;
/// Limits of the average size in bytes. FastCDC computes its logarithm.
const LEAST_AVERAGE: usize = 256;
const MOST_AVERAGE: usize = 4 << 20;
/// Size of the chunks of a version that is stored without deduplication.
pub const PLAIN_BYTES: usize = 1 << 20;

/// Method of finding the end of a chunk.
pub trait Chunker: Send + Sync {
    /// Maximum size of a chunk in bytes. `cut` needs this much data unless the file ends before.
    fn most(&self) -> usize;

    /// Length of the first chunk of `data`. `data` is not empty; it has at least `most` bytes unless it ends the file.
    fn cut(&self, data: &[u8]) -> usize;
}

/// Sizes of content-defined chunks in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub min: usize,
    pub avg: usize,
    pub max: usize,
}

/// Method of chunking for a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunking {
    /// Chunks of a constant size without deduplication.
    Off,
    /// Chunks of a constant size in bytes.
    Fixed(usize),
    /// Boundaries by a rolling gear hash.
    FastCdc(Sizes),
    /// Boundaries by increasing sequences of bytes.
    SeqCdc(Sizes),
}

struct Fixed(usize);

impl Chunker for Fixed {
    fn most(&self) -> usize {
        self.0
    }

    fn cut(&self, data: &[u8]) -> usize {
        data.len().min(self.0)
    }
}

impl Chunking {
    /// Create the chunker of this method.
    pub fn chunker(self) -> Box<dyn Chunker> {
        match self {
            Chunking::Off => Box::new(Fixed(PLAIN_BYTES)),
            Chunking::Fixed(size) => Box::new(Fixed(size)),
            Chunking::FastCdc(sizes) => Box::new(FastCdc::new(sizes)),
            Chunking::SeqCdc(sizes) => Box::new(SeqCdc::new(sizes)),
        }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = |out: &mut fmt::Formatter<'_>, name: &str, sizes: &Sizes| {
            write!(out, "{name}:{},{},{}", sizes.min, sizes.avg, sizes.max)
        };
        match self {
            Chunking::Off => out.write_str("off"),
            Chunking::Fixed(size) => write!(out, "fixed:{size}"),
            Chunking::FastCdc(of) => sizes(out, "fastcdc", of),
            Chunking::SeqCdc(of) => sizes(out, "seqcdc", of),
        }
    }
}

fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: usize = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn sizes(text: &str) -> Option<Sizes> {
    let mut numbers = text.split(',').map(size);
    let (min, avg, max) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let ordered = LEAST_BYTES <= min && min < avg && avg < max && max <= MOST_BYTES;
    let average = (LEAST_AVERAGE..=MOST_AVERAGE).contains(&avg);
    (numbers.next().is_none() && ordered && average).then_some(Sizes { min, avg, max })
}

impl FromStr for Chunking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let chunking = match name {
            "off" if rest.is_empty() => Some(Chunking::Off),
            "fixed" => size(rest)
                .filter(|bytes| (LEAST_BYTES..=MOST_BYTES).contains(bytes))
                .map(Chunking::Fixed),
            "fastcdc" => sizes(rest).map(Chunking::FastCdc),
            "seqcdc" => sizes(rest).map(Chunking::SeqCdc),
            _ => None,
        };
        chunking.ok_or_else(|| {
            format!(
                "found {text:?}; expected off, fixed:SIZE, fastcdc:MIN,AVG,MAX or seqcdc:MIN,AVG,MAX, with \
                 sizes such as 64KiB from 64 B to 16 MiB, and an average from 256 B to 4 MiB"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_round_trip() {
        for text in [
            "off",
            "fixed:4096",
            "fastcdc:1024,4096,16384",
            "seqcdc:1024,4096,16384",
        ] {
            assert_eq!(text.parse::<Chunking>().unwrap().to_string(), text);
        }
        assert_eq!("fixed:1MiB".parse(), Ok(Chunking::Fixed(1 << 20)));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for text in [
            "",
            "of",
            "off:1",
            "fixed",
            "fixed:0",
            "fixed:17MiB",
            "fixed:99999999999999999999",
            "fixed:18446744073709551615MiB",
            "fastcdc:4096,1024,16384",
            "fastcdc:1024,4096",
            "seqcdc:64,65,66",
            "seqcdc:1024,4096,16384,1",
            "fixed:1é",
        ] {
            assert!(text.parse::<Chunking>().is_err(), "{text}");
        }
    }
}
