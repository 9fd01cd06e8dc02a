//! Reader of blktrace's output: binary files, one per processor (`sda.blktrace.0`, …), or blkparse's dump.
//!
//! The events are requests in the order in which they were issued to the device (action D). For a device without such
//! records, such as one that remaps, it is the order in which they were queued (Q). The size and the thread of a
//! request come from the queue record at its sector, if there is one.
//!
//! A request that the device requeues (action R) and that is issued again counts once, from its last issue. A request
//! ends when all of its bytes are completed: the block layer may complete it in parts. Each part of a split request
//! (action X) has the queue record of the undivided one.

use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use crate::imported::{unreadable, Imported, DEVICE_FLUSH, DEVICE_READ, DEVICE_WRITE};
use crate::spool::{Record, Spool};
use crate::ReadError;

/// `struct blk_io_trace` in linux/blktrace_api.h.
const HEADER: usize = 48;
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const SECTOR: u64 = 512;

/// Categories, the upper half of `action`.
const WRITE: u32 = 1 << 1;
const FLUSH: u32 = 1 << 2;
const READ: u32 = 1;
/// A command passed through to the device (SG_IO, …), which has no position on it.
const PASSED_THROUGH: u32 = 1 << 9;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;
/// Actions, the lower half, without the bit for a control group that follows.
const FROM_CGROUP: u32 = 1 << 8;
const QUEUE: u32 = 1;
const REQUEUE: u32 = 6;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
const SPLIT: u32 = 13;
const NOTE_PROCESS: u32 = 0;
const NOTE_TIMESTAMP: u32 = 1;

/// Maximum number of requests under way. Beyond it, the oldest count as never completed.
const MOST_UNDER_WAY: usize = 1 << 20;

/// One request of a device.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct DeviceRequest {
    pub queued_ns: u64,
    pub issued_ns: u64,
    /// Time of completion [ns]; 0 if the trace ended before it.
    pub done_ns: u64,
    pub offset: u64,
    pub size: u32,
    pub op: u8,
    pub pid: u32,
    pub device: u32,
}

#[derive(Debug, Clone)]
struct Entry {
    sequence: u32,
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    device: u32,
    error: u16,
    payload: Vec<u8>,
}

/// File of one processor.
struct Source {
    path: PathBuf,
    input: BufReader<File>,
    at: u64,
    swapped: Option<bool>,
}

impl Source {
    fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|e| unreadable(path, e))?;
        Ok(Source {
            path: path.to_owned(),
            input: BufReader::with_capacity(1 << 18, file),
            at: 0,
            swapped: None,
        })
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<usize, ReadError> {
        let mut filled = 0;
        while filled < into.len() {
            match self.input.read(&mut into[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(unreadable(&self.path, e)),
            }
        }
        Ok(filled)
    }

    fn wrong(&self, what: String) -> ReadError {
        ReadError::Malformed(format!(
            "{}: at byte {}: {what}",
            self.path.display(),
            self.at
        ))
    }

    fn next(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut head = [0; HEADER];
        let n = self.fill(&mut head)?;
        if n == 0 {
            return Ok(None);
        }
        if n < HEADER {
            let what =
                format!("found {n} bytes of a record; expected {HEADER} (a truncated file?)");
            return Err(self.wrong(what));
        }
        let raw = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let swapped = match self.swapped {
            Some(swapped) => swapped,
            None => raw & 0xffff_ff00 != MAGIC && raw.swap_bytes() & 0xffff_ff00 == MAGIC,
        };
        self.swapped = Some(swapped);
        let u16_at = |i: usize| {
            let v = u16::from_le_bytes([head[i], head[i + 1]]);
            if swapped {
                v.swap_bytes()
            } else {
                v
            }
        };
        let u32_at = |i: usize| {
            let v = u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            if swapped {
                v.swap_bytes()
            } else {
                v
            }
        };
        let u64_at = |i: usize| {
            let (a, b) = (u64::from(u32_at(i)), u64::from(u32_at(i + 4)));
            if swapped {
                a << 32 | b
            } else {
                b << 32 | a
            }
        };
        let magic = u32_at(0);
        if magic & 0xffff_ff00 != MAGIC {
            return Err(self.wrong(format!(
                "found {magic:#010x}; expected a record of blktrace ({:#010x})",
                MAGIC | VERSION
            )));
        }
        if magic & 0xff != VERSION {
            let what = format!("found version {}; expected {VERSION}", magic & 0xff);
            return Err(self.wrong(what));
        }
        if i64::try_from(u64_at(8)).is_err() {
            let what = format!("found the time {} ns; expected one below 2^63", u64_at(8));
            return Err(self.wrong(what));
        }
        let payload_bytes = usize::from(u16_at(46));
        let entry = Entry {
            sequence: u32_at(4),
            time: u64_at(8),
            sector: u64_at(16),
            bytes: u32_at(24),
            action: u32_at(28),
            pid: u32_at(32),
            device: u32_at(36),
            error: u16_at(44),
            payload: Vec::new(),
        };
        let mut payload = vec![0; payload_bytes];
        let n = self.fill(&mut payload)?;
        if n < payload_bytes {
            let what = format!(
                "found {n} bytes after a record; expected {payload_bytes} (a truncated file?)"
            );
            return Err(self.wrong(what));
        }
        self.at += (HEADER + payload_bytes) as u64;
        Ok(Some(Entry { payload, ..entry }))
    }
}

/// Files merged by time.
struct Merged {
    sources: Vec<Source>,
    heads: Vec<Option<Entry>>,
    order: BinaryHeap<std::cmp::Reverse<(u64, u32, usize)>>,
}

impl Merged {
    fn open(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let mut merged = Merged {
            sources: Vec::new(),
            heads: Vec::new(),
            order: BinaryHeap::new(),
        };
        for path in paths {
            merged.sources.push(Source::open(path)?);
            merged.heads.push(None);
            merged.advance(merged.sources.len() - 1)?;
        }
        Ok(merged)
    }

    fn advance(&mut self, which: usize) -> Result<(), ReadError> {
        self.heads[which] = self.sources[which].next()?;
        if let Some(entry) = &self.heads[which] {
            self.order
                .push(std::cmp::Reverse((entry.time, entry.sequence, which)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>, ReadError> {
        let Some(std::cmp::Reverse((_, _, which))) = self.order.pop() else {
            return Ok(None);
        };
        let entry = self.heads[which].take();
        self.advance(which)?;
        Ok(entry)
    }
}

/// State of a request that was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Bytes that are not completed yet.
    UnderWay(u64),
    /// Completed, with the error of the block layer; 0 for none.
    Completed(u16),
    /// Requeued by the device.
    Requeued,
}

/// Requests in order of issue, released once completed.
#[derive(Default)]
struct UnderWay {
    queue: VecDeque<(DeviceRequest, State)>,
    first: u64,
    /// Key of each request: device, operation, sector of the next byte to be completed, number.
    at: BTreeMap<(u32, u8, u64, u64), ()>,
}

/// Maximum number of examined requests that begin before a completed sector.
const MOST_CANDIDATES: usize = 256;

impl UnderWay {
    fn issue(&mut self, request: DeviceRequest) {
        let number = self.first + self.queue.len() as u64;
        let key = (request.device, request.op, request.offset / SECTOR, number);
        self.at.insert(key, ());
        let state = State::UnderWay(u64::from(request.size));
        self.queue.push_back((request, state));
    }

    /// Entry of a request, if it was not released yet.
    fn entry(&mut self, number: u64) -> Option<&mut (DeviceRequest, State)> {
        let index = number.checked_sub(self.first)?;
        self.queue.get_mut(usize::try_from(index).ok()?)
    }

    /// Key of the request that covers a sector: the oldest that begins there, else one that includes it.
    fn covering(&mut self, device: u32, sector: u64, op: u8) -> Option<(u32, u8, u64, u64)> {
        // requests that were released before they ended are no longer in the queue
        let exact = (device, op, sector, self.first)..=(device, op, sector, u64::MAX);
        if let Some((&key, ())) = self.at.range(exact).next() {
            return Some(key);
        }
        let before = (device, op, 0, 0)..(device, op, sector, 0);
        let candidates: Vec<_> = self.at.range(before).rev().take(MOST_CANDIDATES).collect();
        let keys: Vec<_> = candidates.into_iter().map(|(&key, ())| key).collect();
        keys.into_iter().find(|&(_, _, start, number)| {
            matches!(self.entry(number), Some((_, State::UnderWay(left)))
                if sector < start.saturating_add(left.div_ceil(SECTOR)))
        })
    }

    fn complete(&mut self, entry: &Entry, op: u8) {
        let Some(key) = self.covering(entry.device, entry.sector, op) else {
            return;
        };
        self.at.remove(&key);
        let (start, number) = (key.2, key.3);
        let (time, error, bytes) = (entry.time, entry.error, u64::from(entry.bytes));
        let Some((request, state)) = self.entry(number) else {
            return;
        };
        let State::UnderWay(left) = *state else {
            return;
        };
        // a completion without bytes completes all of the request
        let rest = if bytes == 0 {
            0
        } else {
            left.saturating_sub(bytes)
        };
        request.done_ns = time;
        if rest == 0 || error != 0 {
            *state = State::Completed(error);
            return;
        }
        *state = State::UnderWay(rest);
        // parts are mostly completed in order; while the first is under way, the key does not change
        let next = if start == entry.sector {
            start + bytes / SECTOR
        } else {
            start
        };
        self.at.insert((key.0, key.1, next, number), ());
    }

    /// Requeue the request that begins at a sector. Return its queue time and its thread.
    fn requeue(&mut self, device: u32, sector: u64, op: u8) -> Option<(u64, u32)> {
        let key = self.covering(device, sector, op)?;
        self.at.remove(&key);
        let (request, state) = self.entry(key.3)?;
        *state = State::Requeued;
        Some((request.queued_ns, request.pid))
    }

    fn release(&mut self, all: bool) -> Option<(DeviceRequest, State)> {
        let ready = !matches!(self.queue.front()?.1, State::UnderWay(_));
        if ready || all || self.queue.len() > MOST_UNDER_WAY {
            let (mut request, state) = self.queue.pop_front()?;
            if matches!(state, State::UnderWay(_)) {
                request.done_ns = 0;
            }
            self.first += 1;
            return Some((request, state));
        }
        None
    }
}

/// Read the files. Events are written to the spool; `each` is called with every request and its times.
///
/// The first pass reads issued requests. If there are none, a second pass reads queued ones.
pub fn read(
    paths: &[PathBuf],
    out: &mut Spool,
    to: &mut Imported,
    each: &mut dyn FnMut(&DeviceRequest) -> std::io::Result<()>,
) -> Result<(), ReadError> {
    let mut issued = false;
    let mut merged = Merged::open(paths)?;
    while let Some(entry) = merged.next()? {
        let other = (entry.action >> 16) & (NOTIFY | PASSED_THROUGH) != 0;
        issued |= !other && entry.action & 0xffff & !FROM_CGROUP == ISSUE;
    }
    let start = if issued { ISSUE } else { QUEUE };
    to.about.push(format!(
        "requests in the order in which they were {}",
        if issued {
            "issued to the device (D)"
        } else {
            "queued (Q): the device was never issued any"
        }
    ));
    pass(paths, start, out, to, each)
}

fn pass(
    paths: &[PathBuf],
    start: u32,
    out: &mut Spool,
    to: &mut Imported,
    each: &mut dyn FnMut(&DeviceRequest) -> std::io::Result<()>,
) -> Result<(), ReadError> {
    let mut merged = Merged::open(paths)?;
    let mut under_way = UnderWay::default();
    let mut queued: HashMap<(u32, u64), (u64, u32)> = HashMap::new();
    let mut names: HashMap<u32, String> = HashMap::new();
    let mut open_ended = 0;
    let mut requeued: u64 = 0;
    let first = paths.first().map(PathBuf::as_path).unwrap_or(Path::new(""));
    while let Some(entry) = merged.next()? {
        let category = entry.action >> 16;
        let action = entry.action & 0xffff & !FROM_CGROUP;
        if category & NOTIFY != 0 {
            note(&entry, action, &mut names, to);
            continue;
        }
        let place = (entry.device, entry.sector);
        let op = match category {
            c if c & (DISCARD | PASSED_THROUGH) != 0 => None,
            c if c & WRITE != 0 && entry.bytes > 0 => Some(DEVICE_WRITE),
            c if c & FLUSH != 0 => Some(DEVICE_FLUSH),
            c if c & READ != 0 => Some(DEVICE_READ),
            _ => None,
        };
        if action == QUEUE && op.is_some() {
            queued.insert(place, (entry.time, entry.pid));
        }
        if action == SPLIT {
            if let (Some(new), Some(&of)) = (entry.payload.first_chunk(), queued.get(&place)) {
                queued.insert((entry.device, u64::from_be_bytes(*new)), of);
            }
        }
        if let (REQUEUE, ISSUE, Some(op)) = (action, start, op) {
            if let Some(by) = under_way.requeue(entry.device, entry.sector, op) {
                queued.insert(place, by);
                requeued += 1;
                to.seen -= 1;
            }
        }
        if action == start {
            to.seen += 1;
            match op {
                Some(op) => {
                    let queue_entry = if start == ISSUE {
                        queued.remove(&place)
                    } else {
                        None
                    };
                    let (queued_ns, pid) = queue_entry.unwrap_or((entry.time, entry.pid));
                    under_way.issue(DeviceRequest {
                        queued_ns,
                        issued_ns: entry.time,
                        done_ns: 0,
                        offset: entry.sector.saturating_mul(SECTOR),
                        size: entry.bytes,
                        op,
                        pid,
                        device: entry.device,
                    });
                }
                None => to.filtered += 1,
            }
        }
        if action == COMPLETE {
            if let Some(op) = op {
                under_way.complete(&entry, op);
            }
        }
        while let Some((request, state)) = under_way.release(false) {
            open_ended += u64::from(matches!(state, State::UnderWay(_)));
            keep(first, &request, state, &names, out, to, each)?;
        }
    }
    while let Some((request, state)) = under_way.release(true) {
        open_ended += u64::from(matches!(state, State::UnderWay(_)));
        keep(first, &request, state, &names, out, to, each)?;
    }
    if open_ended > 0 {
        to.about.push(format!(
            "{open_ended} requests have no completion: their latency is 0"
        ));
    }
    if requeued > 0 {
        to.about.push(format!(
            "{requeued} requests were handed back by the device and issued again: each counts once"
        ));
    }
    for (tid, name) in &names {
        to.rename(*tid, name);
    }
    Ok(())
}

fn note(entry: &Entry, action: u32, names: &mut HashMap<u32, String>, to: &mut Imported) {
    match action {
        NOTE_PROCESS => {
            let end = entry.payload.iter().position(|&b| b == 0);
            let name = &entry.payload[..end.unwrap_or(entry.payload.len())];
            names.insert(entry.pid, String::from_utf8_lossy(name).into_owned());
        }
        NOTE_TIMESTAMP if entry.payload.len() >= 8 => {
            let word = |i: usize| {
                u32::from_le_bytes([
                    entry.payload[i],
                    entry.payload[i + 1],
                    entry.payload[i + 2],
                    entry.payload[i + 3],
                ])
            };
            to.about.push(format!(
                "time {} ns of the trace was {}.{:09} s since 1970",
                entry.time,
                word(0),
                word(4)
            ));
        }
        _ => {}
    }
}

fn keep(
    path: &Path,
    request: &DeviceRequest,
    state: State,
    names: &HashMap<u32, String>,
    out: &mut Spool,
    to: &mut Imported,
    each: &mut dyn FnMut(&DeviceRequest) -> std::io::Result<()>,
) -> Result<(), ReadError> {
    if state == State::Requeued {
        return Ok(());
    }
    let (major, minor) = (request.device >> 20, request.device & 0xf_ffff);
    let file_id = to.file(&format!("device {major}:{minor}"));
    if let Some(file) = to.files.get_mut(file_id as usize - 1) {
        (file.dev_major, file.dev_minor) = (major, minor);
    }
    let offset = i64::try_from(request.offset).unwrap_or(i64::MAX);
    let size = i32::try_from(request.size).unwrap_or(i32::MAX);
    to.reaches(file_id, offset.saturating_add(i64::from(size)));
    let name = names.get(&request.pid).map_or("", String::as_str);
    to.thread(request.pid, request.pid, name, request.issued_ns);
    to.kept += 1;
    let latency_ns = request.done_ns.saturating_sub(request.issued_ns);
    let failed = matches!(state, State::Completed(error) if error != 0);
    out.push(&Record {
        t_ns: request.issued_ns,
        offset,
        latency_ns,
        size: request.size,
        // the record has the error of the block layer, not an error number: EIO
        done: if failed { -5 } else { size },
        file_id,
        tid: request.pid,
        pid: request.pid,
        op: request.op,
        flags: 0,
    })
    .map_err(|e| unreadable(path, e))?;
    each(request).map_err(|e| unreadable(path, e))
}
