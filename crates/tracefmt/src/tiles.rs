//! Density tiles for a trace's figures, computed from its columns in one pass with bounded memory.
//!
//! A figure of few requests stores each one ([`points`]). A figure of many stores counts per cell of a sparse grid,
//! which becomes coarser when it exceeds its maximum number of cells ([`grid`]). Throughput and calls in flight are
//! exact per time bin ([`clock`]). A viewer computes coarser views by adding cells, so that only the finest level is
//! stored. Finer views are counted from the requests ([`window`]).

use serde::{Deserialize, Serialize};

pub mod clock;
pub mod grid;
pub mod pack;
pub mod points;
pub mod totals;
pub mod window;

use clock::Clock;
use grid::{Axis, Grid};
use points::Points;

/// Kinds of marks in one figure: reads, writes, ranges mapped around a fault.
pub const CHANNELS: usize = 3;
/// Number of columns and rows of a grid before it becomes coarser, log2.
const FINEST_BITS: u32 = 14;
/// Number of latency rows per doubling, log2.
const OCTAVE_BITS: u32 = 3;

/// Kind of an event in a figure: bits 0–2 have one of the kinds below, bit 3 marks a page fault.
pub mod kind {
    /// Read from the file.
    pub const READ: u8 = 0;
    /// Write to the file.
    pub const WRITE: u8 = 1;
    /// Range mapped around a fault: pages that were mapped but not accessed.
    pub const AROUND: u8 = 2;
    /// Flush to the device.
    pub const SYNC: u8 = 3;
    /// Operation on names or sizes, open or close.
    pub const META: u8 = 4;
    /// Mask of the kinds above.
    pub const MASK: u8 = 7;
    /// Flag of a page fault.
    pub const FAULT: u8 = 8;
}

/// Columns of one batch of events in the order of the trace, all of equal length.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Start of the operation [ns].
    pub t_ns: &'a [i64],
    /// File number.
    pub file_id: &'a [i64],
    /// Kind of the event; see [`kind`].
    pub kind: &'a [u8],
    /// Offset in the file [bytes].
    pub offset: &'a [i64],
    /// Transferred size [bytes]. Events that transferred nothing are not plotted.
    pub done: &'a [i64],
    /// Latency [ns].
    pub latency: &'a [i64],
}

impl Batch<'_> {
    /// Number of events; `None` if the columns differ in length.
    pub fn rows(&self) -> Option<usize> {
        let n = self.t_ns.len();
        let same = [self.file_id.len(), self.kind.len(), self.offset.len()];
        let more = [self.done.len(), self.latency.len()];
        (same.iter().chain(&more).all(|&m| m == n)).then_some(n)
    }
}

/// File to draw, and its totals from an earlier pass.
#[derive(Clone, Debug, Deserialize)]
pub struct TileRequest {
    /// File number.
    pub file_id: i64,
    /// Number of events to draw, in all channels.
    pub drawn: u64,
    /// Origin of the times in the figure [ns].
    pub origin_ns: i64,
    /// First start, relative to the origin [ns].
    pub first_ns: u64,
    /// Last end, relative to the origin [ns].
    pub last_ns: u64,
    /// Lowest offset [bytes].
    pub low: u64,
    /// Highest offset [bytes].
    pub high: u64,
    /// Store every request instead of cells.
    pub each: bool,
    /// Maximum number of cells of a grid.
    pub cells: usize,
    /// Borders as (channel, n): each lies before request number n of that channel. They are in ascending order of n.
    #[serde(default)]
    pub borders: Vec<(u8, u64)>,
    /// Times [ns after the origin] in ascending order, for which the request number is returned.
    #[serde(default)]
    pub moments: Vec<u64>,
}

/// Accumulated tiles of one file.
pub struct FileTiles {
    request: TileRequest,
    seen: u64,
    counts: [u64; CHANNELS],
    /// Time and number of each border that was reached.
    borders: Vec<Option<(u64, u64)>>,
    moments: Vec<u64>,
    content: Content,
}

// one value per figure, and large figures use the larger variant
#[allow(clippy::large_enum_variant)]
enum Content {
    Each(Points),
    Cells {
        number: Grid,
        time: Grid,
        latency: Grid,
        clock: Clock,
    },
}

/// A packed figure: its description, and named byte sections (see [`pack`]).
pub struct Packed {
    /// JSON-able description.
    pub head: Head,
    /// Byte sections by name.
    pub sections: Vec<(String, Vec<u8>)>,
}

/// Description of one file's packed figures.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// File number.
    pub file_id: i64,
    /// `points` or `cells`.
    pub form: &'static str,
    /// Number of plotted events, per channel.
    pub counts: [u64; CHANNELS],
    /// Axes of the three grids by name, for `cells`.
    pub grids: Vec<(String, grid::Shape)>,
    /// Width of the clock's bins [ns] and start of the first bin, for `cells`.
    pub clock: Option<clock::Shape>,
    /// Divisor of all offsets [bytes], for `points`.
    pub granule: u64,
    /// Time [ns after the origin] and request number of each requested border; `None` if it was not reached.
    pub borders: Vec<Option<(u64, u64)>>,
    /// Request number at each requested time.
    pub moments: Vec<u64>,
}

impl FileTiles {
    /// Create an empty figure.
    pub fn new(request: TileRequest) -> Self {
        let content = if request.each {
            Content::Each(Points::new(request.drawn))
        } else {
            let y = Axis::over(request.low, request.high, FINEST_BITS);
            let time = Axis::over(request.first_ns, request.last_ns, FINEST_BITS);
            Content::Cells {
                number: Grid::new(
                    Axis::over(0, request.drawn.max(1) - 1, FINEST_BITS),
                    y,
                    request.cells,
                ),
                time: Grid::new(time, y, request.cells),
                latency: Grid::new(
                    Axis::over(request.first_ns, request.last_ns, 10),
                    Axis::over(0, 511, 9),
                    1 << 20,
                ),
                clock: Clock::new(request.first_ns, request.last_ns),
            }
        };
        let borders = vec![None; request.borders.len()];
        Self {
            request,
            seen: 0,
            counts: [0; CHANNELS],
            borders,
            moments: Vec::new(),
            content,
        }
    }

    fn add(&mut self, kind: u8, t_ns: i64, offset: i64, done: i64, latency: i64) {
        let channel = (kind & kind::MASK) as usize;
        let t = u64::try_from(t_ns.saturating_sub(self.request.origin_ns)).unwrap_or(0);
        let offset = u64::try_from(offset).unwrap_or(0);
        let latency = u64::try_from(latency).unwrap_or(0);
        let number = self.seen;
        while self
            .request
            .moments
            .get(self.moments.len())
            .is_some_and(|&moment| moment <= t)
        {
            self.moments.push(number);
        }
        for (border, position) in self.request.borders.iter().zip(&mut self.borders) {
            if *border == (channel as u8, self.counts[channel]) {
                *position = Some((t, number));
            }
        }
        self.seen += 1;
        self.counts[channel] += 1;
        match &mut self.content {
            Content::Each(points) => points.add(channel, t, offset, done, latency),
            Content::Cells {
                number: by_number,
                time,
                latency: by_latency,
                clock,
            } => {
                by_number.add(number, offset, channel);
                time.add(t, offset, channel);
                if channel != kind::AROUND as usize {
                    by_latency.add(t, latency_row(latency), channel);
                    clock.add(channel, t, done.unsigned_abs(), latency);
                }
            }
        }
    }

    /// Pack the accumulated tiles.
    pub fn packed(mut self) -> Packed {
        self.moments.resize(self.request.moments.len(), self.seen);
        let mut head = Head {
            file_id: self.request.file_id,
            form: "points",
            counts: self.counts,
            grids: Vec::new(),
            clock: None,
            granule: 1,
            borders: self.borders,
            moments: self.moments,
        };
        let mut sections = Vec::new();
        match self.content {
            Content::Each(points) => {
                head.granule = points.granule();
                sections.extend(points.packed());
            }
            Content::Cells {
                number,
                time,
                latency,
                clock,
            } => {
                head.form = "cells";
                for (name, grid) in [("number", number), ("time", time), ("latency", latency)] {
                    let grid = grid.finish();
                    head.grids.push((name.to_owned(), grid.shape()));
                    sections.push((name.to_owned(), grid.packed_cells()));
                    sections.push((format!("{name}_edges"), grid.packed_edges()));
                }
                head.clock = Some(clock.shape());
                sections.extend(clock.packed());
            }
        }
        Packed { head, sections }
    }
}

/// Row of a latency in the latency grid: eight per doubling.
pub fn latency_row(latency_ns: u64) -> u64 {
    let v = latency_ns.max(1);
    let octave = 63 - v.leading_zeros();
    let fraction = if octave >= OCTAVE_BITS {
        (v >> (octave - OCTAVE_BITS)) & ((1 << OCTAVE_BITS) - 1)
    } else {
        (v << (OCTAVE_BITS - octave)) & ((1 << OCTAVE_BITS) - 1)
    };
    (u64::from(octave) << OCTAVE_BITS) | fraction
}

/// Tiles of several files, updated batch by batch.
pub struct Tiles {
    files: Vec<FileTiles>,
    /// Index into `files` plus 1 by file number. Larger numbers are searched.
    places: Vec<u32>,
}

impl Tiles {
    /// Create tiles for these files.
    pub fn new(requests: Vec<TileRequest>) -> Self {
        let most = requests.iter().map(|w| w.file_id).max().unwrap_or(0);
        let mut places = vec![0; usize::try_from(most.clamp(0, 1 << 24)).unwrap_or(0) + 1];
        for (place, w) in requests.iter().enumerate() {
            if let Some(slot) = usize::try_from(w.file_id)
                .ok()
                .and_then(|i| places.get_mut(i))
            {
                *slot = u32::try_from(place + 1).unwrap_or(0);
            }
        }
        Self {
            files: requests.into_iter().map(FileTiles::new).collect(),
            places,
        }
    }

    /// Add a batch. Return false, and add nothing, if its columns differ in length.
    pub fn add(&mut self, batch: Batch<'_>) -> bool {
        let Some(n) = batch.rows() else { return false };
        for i in 0..n {
            let id = batch.file_id[i];
            let kind = batch.kind[i];
            if (kind & kind::MASK) > kind::AROUND || batch.done[i] <= 0 {
                continue;
            }
            let place = match usize::try_from(id).ok().and_then(|id| self.places.get(id)) {
                Some(&place) => place as usize,
                None => self
                    .files
                    .iter()
                    .position(|f| f.request.file_id == id)
                    .map_or(0, |place| place + 1),
            };
            if place > 0 {
                self.files[place - 1].add(
                    kind,
                    batch.t_ns[i],
                    batch.offset[i],
                    batch.done[i],
                    batch.latency[i],
                );
            }
        }
        true
    }

    /// Pack all files, in the order in which they were requested.
    pub fn packed(self) -> Vec<Packed> {
        self.files.into_iter().map(FileTiles::packed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(each: bool, n: u64) -> TileRequest {
        TileRequest {
            file_id: 4,
            drawn: n,
            origin_ns: 1000,
            first_ns: 0,
            last_ns: n * 10 + 100,
            low: 0,
            high: n * 4096,
            each,
            cells: 10_000,
            borders: vec![(0, 50), (1, 10), (1, 1 << 40)],
            moments: vec![0, 505, 1 << 50],
        }
    }

    #[test]
    fn only_transfers_of_the_requested_file_are_drawn() {
        let n = 3000u64;
        let (mut t, mut file, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        let (mut offset, mut done) = (Vec::new(), Vec::new());
        for i in 0..n {
            t.push(1000 + i as i64 * 10);
            file.push(if i % 5 == 4 { 9 } else { 4 });
            kinds.push([kind::READ, kind::WRITE, kind::SYNC][(i % 3) as usize]);
            offset.push(i as i64 * 4096);
            done.push(if i % 7 == 0 { 0 } else { 4096 });
        }
        let latency = vec![100; t.len()];
        let batch = Batch {
            t_ns: &t,
            file_id: &file,
            kind: &kinds,
            offset: &offset,
            done: &done,
            latency: &latency,
        };
        let drawn: Vec<u64> = (0..n)
            .filter(|i| i % 5 != 4 && i % 3 != 2 && i % 7 != 0)
            .collect();
        let reads: Vec<u64> = drawn.iter().copied().filter(|i| i % 3 == 0).collect();
        for each in [true, false] {
            let mut tiles = Tiles::new(vec![request(each, n)]);
            assert!(tiles.add(batch));
            let head = tiles.packed().remove(0).head;
            assert_eq!(head.counts.iter().sum::<u64>(), drawn.len() as u64);
            assert_eq!(head.counts[0], reads.len() as u64);
            let place = |i: u64| drawn.iter().position(|&d| d == i).unwrap() as u64;
            assert_eq!(head.borders[0], Some((reads[50] * 10, place(reads[50]))));
            assert_eq!(head.borders[2], None);
            let before = drawn.iter().filter(|&&i| i * 10 < 505).count() as u64;
            assert_eq!(head.moments, vec![0, before, drawn.len() as u64]);
        }
        let mut totals = totals::Totals::default();
        assert!(totals.add(batch));
        let totals_of_file = totals.files().iter().find(|f| f.file_id == 4).unwrap();
        assert_eq!(totals_of_file.drawn.iter().sum::<u64>(), drawn.len() as u64);
        let short = Batch {
            done: &done[1..],
            ..batch
        };
        assert!(!totals.add(short));
    }

    #[test]
    fn latency_rows_rise_with_latency_and_hold_an_eighth_of_a_doubling() {
        let mut last = 0;
        for v in 1..100_000u64 {
            let row = latency_row(v);
            assert!(row >= last);
            last = row;
        }
        assert_eq!(latency_row(0), latency_row(1));
        assert_eq!(latency_row(2048) - latency_row(1024), 8);
        assert!(latency_row(u64::MAX) <= 511);
    }
}
