//! Counts per cell of offset × (number | time). The grid is sparse and becomes coarser when it has too many cells.
//!
//! Events arrive nearly in order of x. So one column at a time is filled in a dense buffer, and finished columns store
//! only non-empty cells. Late events of an unordered trace are added to their finished columns. Cell widths are powers
//! of two, so that coarser cells are sums of neighbours and borders do not move.

use serde::Serialize;

use super::pack::put;
use super::CHANNELS;

/// An axis with values from `origin` in bins of width 2^`shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Axis {
    /// Start of bin 0.
    pub origin: u64,
    /// log2 of the bin width.
    pub shift: u32,
}

/// Number of doublings for which the origin stays on a bin border.
const DOUBLINGS: u32 = 6;

impl Axis {
    /// Create an axis over `low..=high` of at most 2^`bits` bins. Its origin stays on a border after several doublings.
    pub fn over(low: u64, high: u64, bits: u32) -> Self {
        let high = high.max(low);
        let mut shift = 0;
        loop {
            let aligned = shift + DOUBLINGS;
            let origin = if aligned >= 64 {
                0
            } else {
                low >> aligned << aligned
            };
            if shift >= 63 || (high - origin) >> shift < 1 << bits {
                return Self { origin, shift };
            }
            shift += 1;
        }
    }

    /// Bin of a value; 0 for values before the origin.
    pub fn bin(self, value: u64) -> u64 {
        value.saturating_sub(self.origin) >> self.shift
    }

    fn doubled(self) -> Self {
        let shift = self.shift + 1;
        let origin = if shift >= 64 {
            0
        } else {
            self.origin >> shift << shift
        };
        Self { origin, shift }
    }

    /// Bin after doubling the width of the bins, from the bin before it.
    fn halved(self, bin: u32) -> u32 {
        // for DOUBLINGS doublings the origin stays on a border, later it moves down by one old bin
        let moved = self.origin > self.doubled().origin;
        (bin + u32::from(moved)) >> 1
    }
}

/// Shape of a grid, to unpack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Axis of the number or time [ns].
    pub x: Axis,
    /// Axis of the offset [bytes] or the latency row.
    pub y: Axis,
    /// Number of columns in the packed sections.
    pub columns: u32,
    /// Number of non-empty cells.
    pub cells: u32,
}

/// A non-empty cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Row, from the bottom.
    pub row: u32,
    /// Number of events per channel.
    pub n: [u32; CHANNELS],
}

/// Lowest and highest y of each channel in one column; low > high if there is none.
type Edges = [(u64, u64); CHANNELS];
const NO_EDGES: Edges = [(u64::MAX, 0); CHANNELS];

/// Grid under construction.
pub struct Grid {
    x: Axis,
    y: Axis,
    most: usize,
    /// Index in `cells` of the first cell of each finished column.
    starts: Vec<u32>,
    cells: Vec<Cell>,
    edges: Vec<Edges>,
    column: u32,
    open: Vec<[u32; CHANNELS]>,
    open_rows: Vec<u32>,
    open_edges: Edges,
    late: Vec<(u32, u32, u8, u64)>,
}

const MOST_LATE: usize = 1 << 16;

impl Grid {
    /// Create an empty grid of about `most` cells at most.
    pub fn new(x: Axis, y: Axis, most: usize) -> Self {
        Self {
            x,
            y,
            most: most.max(1024),
            starts: Vec::new(),
            cells: Vec::new(),
            edges: Vec::new(),
            column: 0,
            open: Vec::new(),
            open_rows: Vec::new(),
            open_edges: NO_EDGES,
            late: Vec::new(),
        }
    }

    /// Add one event.
    #[inline]
    pub fn add(&mut self, x: u64, y: u64, channel: usize) {
        let column = u32::try_from(self.x.bin(x)).unwrap_or(u32::MAX >> 1);
        if column != self.column {
            if column < self.column {
                let row = u32::try_from(self.y.bin(y)).unwrap_or(u32::MAX);
                self.late.push((column, row, channel as u8, y));
                if self.late.len() >= MOST_LATE {
                    self.settle();
                }
                return;
            }
            self.advance(x);
        }
        let row = self.y.bin(y) as usize;
        if row >= self.open.len() {
            self.open.resize(row + 1, [0; CHANNELS]);
        }
        let cell = &mut self.open[row];
        if *cell == [0; CHANNELS] {
            self.open_rows.push(row as u32);
        }
        cell[channel] = cell[channel].saturating_add(1);
        let edge = &mut self.open_edges[channel];
        *edge = (edge.0.min(y), edge.1.max(y));
    }

    /// Finish the open column and open the column of `x`.
    #[cold]
    fn advance(&mut self, x: u64) {
        self.close();
        self.column += 1;
        while self.cells.len() > self.most {
            self.coarsen();
        }
        let column = u32::try_from(self.x.bin(x)).unwrap_or(u32::MAX >> 1);
        // after doubling the widths, a finished column may be the open one again
        if column < self.column {
            self.reopen(column);
        }
        while self.column < column {
            self.starts.push(self.cells.len() as u32);
            self.edges.push(NO_EDGES);
            self.column += 1;
        }
    }

    /// Move the cells of the open column to the finished ones.
    fn close(&mut self) {
        self.starts.push(self.cells.len() as u32);
        self.open_rows.sort_unstable();
        for &row in &self.open_rows {
            let n = std::mem::take(&mut self.open[row as usize]);
            self.cells.push(Cell { row, n });
        }
        self.open_rows.clear();
        self.edges
            .push(std::mem::replace(&mut self.open_edges, NO_EDGES));
    }

    /// Reopen the last finished column.
    fn reopen(&mut self, column: u32) {
        debug_assert_eq!(column + 1, self.column);
        let start = self.starts.pop().unwrap_or(0) as usize;
        for cell in self.cells.drain(start..) {
            if cell.row as usize >= self.open.len() {
                self.open.resize(cell.row as usize + 1, [0; CHANNELS]);
            }
            self.open[cell.row as usize] = cell.n;
            self.open_rows.push(cell.row);
        }
        self.open_edges = self.edges.pop().unwrap_or(NO_EDGES);
        self.column = column;
    }

    /// Double the width of columns and rows. No column may be open.
    fn coarsen(&mut self) {
        self.settle_into_finished();
        let columns = self.starts.len();
        let mut starts = Vec::with_capacity(columns / 2 + 1);
        let mut edges = Vec::with_capacity(columns / 2 + 1);
        let mut cells: Vec<Cell> = Vec::with_capacity(self.cells.len() / 2);
        let shifted = usize::from(self.x.halved(1) == 1);
        let mut at = 0;
        while at < columns {
            // if the origin moved down, the first new column contains only the first old one
            let width = if at == 0 && shifted == 1 { 1 } else { 2 };
            let end = (at + width).min(columns);
            starts.push(cells.len() as u32);
            let first = self.starts[at] as usize;
            let last = self
                .starts
                .get(end)
                .map_or(self.cells.len(), |&s| s as usize);
            let middle = self
                .starts
                .get(at + 1)
                .map_or(last, |&s| (s as usize).min(last));
            let y = self.y;
            merge(
                &self.cells[first..middle],
                &self.cells[middle..last],
                |row| y.halved(row),
                &mut cells,
            );
            let mut joined = NO_EDGES;
            for old in &self.edges[at..end] {
                for (sum, added) in joined.iter_mut().zip(old) {
                    *sum = (sum.0.min(added.0), sum.1.max(added.1));
                }
            }
            edges.push(joined);
            at = end;
        }
        self.column = starts.len() as u32;
        self.starts = starts;
        self.edges = edges;
        self.cells = cells;
        self.x = self.x.doubled();
        self.y = self.y.doubled();
    }

    /// Add late events to their columns while a column is open.
    #[cold]
    fn settle(&mut self) {
        let column = self.column;
        self.close();
        self.column += 1;
        self.settle_into_finished();
        self.reopen(column);
    }

    fn settle_into_finished(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable();
        let mut cells = Vec::with_capacity(self.cells.len() + late.len());
        let mut starts = Vec::with_capacity(self.starts.len());
        let mut rest = late.as_slice();
        for column in 0..self.starts.len() {
            starts.push(cells.len() as u32);
            let first = self.starts[column] as usize;
            let last = self
                .starts
                .get(column + 1)
                .map_or(self.cells.len(), |&s| s as usize);
            let boundary = rest.partition_point(|l| l.0 as usize <= column);
            let (own, others) = rest.split_at(boundary);
            rest = others;
            let mut added: Vec<Cell> = Vec::with_capacity(own.len());
            for &(_, row, channel, y) in own {
                if added.last().is_none_or(|cell| cell.row != row) {
                    added.push(Cell {
                        row,
                        n: [0; CHANNELS],
                    });
                }
                let place = added.len() - 1;
                added[place].n[channel as usize] += 1;
                let edge = &mut self.edges[column][channel as usize];
                *edge = (edge.0.min(y), edge.1.max(y));
            }
            merge(&self.cells[first..last], &added, |row| row, &mut cells);
        }
        self.starts = starts;
        self.cells = cells;
    }

    /// Finish the grid after the last event.
    pub fn finish(mut self) -> Finished {
        self.close();
        self.column += 1;
        self.settle_into_finished();
        while self.cells.len() > self.most {
            self.coarsen();
        }
        Finished {
            x: self.x,
            y: self.y,
            starts: self.starts,
            cells: self.cells,
            edges: self.edges,
        }
    }
}

/// Merge two columns, each ordered by row, into `out`. `at` maps an old row to a new one.
fn merge(mut a: &[Cell], mut b: &[Cell], at: impl Fn(u32) -> u32, out: &mut Vec<Cell>) {
    let begin = out.len();
    while let Some(next) = match (a.first(), b.first()) {
        (Some(p), Some(q)) if p.row <= q.row => Some((p, true)),
        (Some(_), Some(q)) => Some((q, false)),
        (Some(p), None) => Some((p, true)),
        (None, Some(q)) => Some((q, false)),
        (None, None) => None,
    } {
        let (cell, from_a) = next;
        let row = at(cell.row);
        match out[begin..].last_mut() {
            Some(last) if last.row == row => {
                for (sum, n) in last.n.iter_mut().zip(cell.n) {
                    *sum = sum.saturating_add(n);
                }
            }
            _ => out.push(Cell { row, n: cell.n }),
        }
        if from_a {
            a = &a[1..];
        } else {
            b = &b[1..];
        }
    }
}

/// Finished grid.
pub struct Finished {
    x: Axis,
    y: Axis,
    starts: Vec<u32>,
    cells: Vec<Cell>,
    edges: Vec<Edges>,
}

impl Finished {
    /// Axes and size of the grid.
    pub fn shape(&self) -> Shape {
        Shape {
            x: self.x,
            y: self.y,
            columns: self.starts.len() as u32,
            cells: self.cells.len() as u32,
        }
    }

    /// Cells of a column, from the bottom.
    pub fn column(&self, column: usize) -> &[Cell] {
        let first = self.starts[column] as usize;
        let last = self
            .starts
            .get(column + 1)
            .map_or(self.cells.len(), |&s| s as usize);
        &self.cells[first..last]
    }

    /// Pack the number of cells per column, then per cell the distance in rows from the one below, and the counts:
    /// `n·4` only reads, `n·4 + 1` only writes, `n·4 + 2` reads and then writes, `n·4 + 3` all three.
    pub fn packed_cells(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.cells.len() * 3);
        for column in 0..self.starts.len() {
            let cells = self.column(column);
            put(&mut out, cells.len() as u64);
            let mut below = 0;
            for cell in cells {
                put(&mut out, u64::from(cell.row - below));
                below = cell.row;
                let [r, w, a] = cell.n.map(u64::from);
                match (r, w, a) {
                    (_, 0, 0) => put(&mut out, r << 2),
                    (0, _, 0) => put(&mut out, w << 2 | 1),
                    (_, _, 0) => {
                        put(&mut out, r << 2 | 2);
                        put(&mut out, w);
                    }
                    _ => {
                        put(&mut out, r << 2 | 3);
                        put(&mut out, w);
                        put(&mut out, a);
                    }
                }
            }
        }
        out
    }

    /// Pack per column and channel: 0 if there is none, else 1 + the distance of the lowest y from the border of its
    /// cell, and the same for the highest. The cells themselves are the lowest and highest of the column.
    pub fn packed_edges(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let part = |y: u64| {
            let from = y.saturating_sub(self.y.origin);
            from - (from >> self.y.shift << self.y.shift)
        };
        for edges in &self.edges {
            for &(low, high) in edges {
                if low > high {
                    put(&mut out, 0);
                } else {
                    put(&mut out, 1 + part(low));
                    put(&mut out, part(high));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn noise(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// Brute-force counts on the grid's own axes.
    fn expected(events: &[(u64, u64, usize)], shape: Shape) -> BTreeMap<(u64, u64), [u32; 3]> {
        let mut counts = BTreeMap::new();
        for &(x, y, channel) in events {
            let cell = counts
                .entry((shape.x.bin(x), shape.y.bin(y)))
                .or_insert([0; 3]);
            cell[channel] += 1;
        }
        counts
    }

    fn filled(events: &[(u64, u64, usize)], x: Axis, y: Axis, most: usize) -> Finished {
        let mut grid = Grid::new(x, y, most);
        for &(x, y, channel) in events {
            grid.add(x, y, channel);
        }
        grid.finish()
    }

    fn check(events: &[(u64, u64, usize)], grid: &Finished) {
        let shape = grid.shape();
        let mut counts = BTreeMap::new();
        for column in 0..shape.columns as usize {
            for cell in grid.column(column) {
                counts.insert((column as u64, u64::from(cell.row)), cell.n);
            }
        }
        assert_eq!(counts, expected(events, shape));
        let total: u32 = counts.values().flatten().sum();
        assert_eq!(total as usize, events.len());
    }

    #[test]
    fn counts_match_brute_force_after_doubling() {
        for (low, span, most) in [
            (0, 1 << 30, 1 << 20),
            (0, 1 << 30, 2000),
            (777 << 20, 1 << 28, 1500),
            (5, 60, 1024),
        ] {
            let mut state = 7;
            let n = 60_000u64;
            let events: Vec<_> = (0..n)
                .map(|i| {
                    let channel = (noise(&mut state) % 3) as usize;
                    (i, low + noise(&mut state) % span, channel)
                })
                .collect();
            let grid = filled(
                &events,
                Axis::over(0, n - 1, 14),
                Axis::over(low, low + span, 14),
                most,
            );
            assert!(grid.shape().cells as usize <= most);
            check(&events, &grid);
        }
    }

    #[test]
    fn late_events_are_counted_in_their_column() {
        let mut state = 3;
        let n = 200_000u64;
        let events: Vec<_> = (0..n)
            .map(|i| {
                let x = (i * 10).saturating_sub(noise(&mut state) % 50_000);
                (x, noise(&mut state) % 4096, 0)
            })
            .collect();
        let grid = filled(
            &events,
            Axis::over(0, n * 10, 12),
            Axis::over(0, 4096, 12),
            50_000,
        );
        check(&events, &grid);
    }

    #[test]
    fn extremes_of_every_column_are_exact() {
        let mut state = 11;
        let n = 50_000u64;
        let mut events: Vec<_> = (0..n)
            .map(|i| (i, (1 << 20) + noise(&mut state) % (1 << 30), 0))
            .collect();
        events[31_000].1 = 3;
        events[44_000].1 = (1 << 31) + 5;
        let grid = filled(
            &events,
            Axis::over(0, n - 1, 14),
            Axis::over(3, (1 << 31) + 5, 14),
            3000,
        );
        let edges = grid.packed_edges();
        let mut rest = edges.as_slice();
        let mut lows = Vec::new();
        let mut highs = Vec::new();
        for column in 0..grid.shape().columns as usize {
            let rows = grid.column(column);
            for channel in 0..3 {
                let Some(low) = crate::tiles::pack::take(&mut rest).unwrap().checked_sub(1) else {
                    continue;
                };
                let high = crate::tiles::pack::take(&mut rest).unwrap();
                assert_eq!(channel, 0);
                let y = grid.shape().y;
                let at = |row: u32, part| y.origin + (u64::from(row) << y.shift) + part;
                lows.push(at(rows[0].row, low));
                highs.push(at(rows[rows.len() - 1].row, high));
            }
        }
        assert_eq!(lows.iter().min(), Some(&3));
        assert_eq!(highs.iter().max(), Some(&((1 << 31) + 5)));
        let x = grid.shape().x;
        for (column, (low, high)) in lows.iter().zip(&highs).enumerate() {
            let in_column = events.iter().filter(|e| x.bin(e.0) == column as u64);
            assert_eq!(in_column.clone().map(|e| e.1).min(), Some(*low));
            assert_eq!(in_column.map(|e| e.1).max(), Some(*high));
        }
    }

    #[test]
    fn an_axis_holds_its_range() {
        for (low, high) in [(0, 0), (5, 5), (1 << 40, (1 << 40) + 3), (7, u64::MAX)] {
            let axis = Axis::over(low, high, 14);
            assert!(axis.origin <= low);
            assert!(axis.bin(high) < 1 << 14);
        }
    }
}
