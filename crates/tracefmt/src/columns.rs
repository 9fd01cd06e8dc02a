//! A batch of rows of `io_events` and `device_requests` as columns.

/// Columns of `io_events`, all of equal length. Times in ns of CLOCK_MONOTONIC, sizes in bytes.
#[derive(Debug, Default, Clone)]
#[allow(missing_docs)]
pub struct Events {
    pub t_ns: Vec<i64>,
    pub op: Vec<i64>,
    pub file_id: Vec<i64>,
    pub offset: Vec<i64>,
    pub size: Vec<i64>,
    pub done: Vec<i64>,
    pub errno: Vec<i64>,
    pub latency_ns: Vec<i64>,
    pub pid: Vec<i64>,
    pub tid: Vec<i64>,
    pub flags: Vec<i64>,
}

/// Flag of an asynchronous request.
pub const ASYNC: i64 = 64;
/// Flag of an event that bypasses the page cache.
pub const DIRECT: i64 = 1;

/// One row of [`Events`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Event {
    pub t_ns: i64,
    pub op: i64,
    pub file_id: i64,
    pub offset: i64,
    pub size: i64,
    pub done: i64,
    pub errno: i64,
    pub latency_ns: i64,
    pub pid: i64,
    pub tid: i64,
    pub flags: i64,
}

impl Event {
    /// Time of the return [ns].
    pub fn end_ns(&self) -> i64 {
        self.t_ns.saturating_add(self.latency_ns.max(0))
    }
}

impl Events {
    /// True if all columns have equal length.
    pub fn is_even(&self) -> bool {
        let n = self.t_ns.len();
        [
            &self.op,
            &self.file_id,
            &self.offset,
            &self.size,
            &self.done,
            &self.errno,
            &self.latency_ns,
            &self.pid,
            &self.tid,
            &self.flags,
        ]
        .iter()
        .all(|column| column.len() == n)
    }

    /// Iterate over the rows.
    pub fn rows(&self) -> impl Iterator<Item = Event> + '_ {
        (0..self.t_ns.len()).map(|i| Event {
            t_ns: self.t_ns[i],
            op: self.op[i],
            file_id: self.file_id[i],
            offset: self.offset[i],
            size: self.size[i],
            done: self.done[i],
            errno: self.errno[i],
            latency_ns: self.latency_ns[i],
            pid: self.pid[i],
            tid: self.tid[i],
            flags: self.flags[i],
        })
    }
}

/// Columns of `device_requests`, all of equal length. `disk` is an index into the context's disks.
#[derive(Debug, Default, Clone)]
#[allow(missing_docs)]
pub struct Requests {
    pub t_ns: Vec<i64>,
    pub done_ns: Vec<i64>,
    /// 0 read, 1 write, 2 flush, 3 discard.
    pub op: Vec<i64>,
    pub offset: Vec<i64>,
    pub size: Vec<i64>,
    pub disk: Vec<i64>,
    /// Thread that issued the request; 0 if unknown.
    pub tid: Vec<i64>,
}

/// One row of [`Requests`].
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Request {
    pub t_ns: i64,
    pub done_ns: i64,
    pub op: i64,
    pub offset: i64,
    pub size: i64,
    pub disk: i64,
    pub tid: i64,
}

impl Requests {
    /// True if all columns have equal length.
    pub fn is_even(&self) -> bool {
        let n = self.t_ns.len();
        [
            &self.done_ns,
            &self.op,
            &self.offset,
            &self.size,
            &self.disk,
            &self.tid,
        ]
        .iter()
        .all(|column| column.len() == n)
    }

    /// Iterate over the rows.
    pub fn rows(&self) -> impl Iterator<Item = Request> + '_ {
        (0..self.t_ns.len()).map(|i| Request {
            t_ns: self.t_ns[i],
            done_ns: self.done_ns[i],
            op: self.op[i],
            offset: self.offset[i],
            size: self.size[i],
            disk: self.disk[i],
            tid: self.tid[i],
        })
    }
}
