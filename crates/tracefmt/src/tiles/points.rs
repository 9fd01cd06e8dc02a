//! All requests of a figure with few of them.

use super::pack::{put, put_signed};

/// Columns of all requests.
pub struct Points {
    t: Vec<u64>,
    offset: Vec<u64>,
    done: Vec<u64>,
    latency: Vec<u64>,
    channel: Vec<u8>,
}

impl Points {
    /// Create empty columns with capacity for `n` requests.
    pub fn new(n: u64) -> Self {
        let n = usize::try_from(n).unwrap_or(0).min(1 << 22);
        Self {
            t: Vec::with_capacity(n),
            offset: Vec::with_capacity(n),
            done: Vec::with_capacity(n),
            latency: Vec::with_capacity(n),
            channel: Vec::with_capacity(n),
        }
    }

    /// Add one request.
    pub fn add(&mut self, channel: usize, t: u64, offset: u64, done: i64, latency: u64) {
        self.t.push(t);
        self.offset.push(offset);
        self.done.push(done.unsigned_abs());
        self.latency.push(latency);
        self.channel.push(channel as u8);
    }

    /// Largest power of two that divides all offsets and sizes [bytes].
    pub fn granule(&self) -> u64 {
        let all = self
            .offset
            .iter()
            .chain(&self.done)
            .fold(0, |all, v| all | v);
        1 << all.trailing_zeros().min(20)
    }

    /// Sections: `t` (signed steps · 4 + channel), `offset` (signed, from the end of the previous request) and `done`
    /// (signed steps), both in granules, `latency` [ns].
    pub fn packed(&self) -> Vec<(String, Vec<u8>)> {
        let granule = self.granule();
        let (mut t, mut offset) = (Vec::new(), Vec::new());
        let (mut done, mut latency) = (Vec::new(), Vec::new());
        let (mut last_t, mut last_end, mut last_done) = (0, 0, 0);
        for i in 0..self.t.len() {
            let step = self.t[i].wrapping_sub(last_t) as i64;
            put_signed(&mut t, step << 2 | i64::from(self.channel[i]));
            last_t = self.t[i];
            let (from, size) = (self.offset[i] / granule, self.done[i] / granule);
            put_signed(&mut offset, from.wrapping_sub(last_end) as i64);
            put_signed(&mut done, size.wrapping_sub(last_done) as i64);
            last_end = from.wrapping_add(size);
            last_done = size;
            put(&mut latency, self.latency[i]);
        }
        let named = [
            ("t", t),
            ("offset", offset),
            ("done", done),
            ("latency", latency),
        ];
        named.map(|(n, b)| (n.to_owned(), b)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::take;
    use super::*;

    fn signed(bytes: &mut &[u8]) -> i64 {
        let v = take(bytes).unwrap();
        (v >> 1) as i64 ^ -((v & 1) as i64)
    }

    #[test]
    fn every_request_is_returned() {
        let mut points = Points::new(4);
        let events = [
            (0, 100, 8192, 4096, 900),
            (1, 90, 0, 512, 5),
            (2, 5000, 1 << 40, 65536, 0),
            (0, 5000, 12288, 4096, 1 << 35),
        ];
        for (channel, t, offset, done, latency) in events {
            points.add(channel, t, offset, done, latency);
        }
        assert_eq!(points.granule(), 512);
        let sections = points.packed();
        let mut bytes: Vec<&[u8]> = sections.iter().map(|(_, b)| b.as_slice()).collect();
        let (mut t, mut end, mut size) = (0i64, 0i64, 0i64);
        for (channel, at, offset, done, latency) in events {
            let step = signed(&mut bytes[0]);
            t += step >> 2;
            assert_eq!((step & 3, t), (channel as i64, at as i64));
            let from = end + signed(&mut bytes[1]);
            size += signed(&mut bytes[2]);
            assert_eq!((from * 512, size * 512), (offset as i64, done));
            end = from + size;
            assert_eq!(take(&mut bytes[3]), Some(latency));
        }
        assert!(bytes.iter().all(|b| b.is_empty()));
    }
}
