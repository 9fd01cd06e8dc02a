//! Structures of `bpf/layout.h`, field for field.

/// Class of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Reads bytes from the file.
    Read,
    /// Writes bytes to the file.
    Write,
    /// Makes the file durable.
    Sync,
    /// Changes its name, size or existence, or opens or closes it.
    Meta,
}

impl Direction {
    /// Name: `read`, `write`, `sync` or `meta`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Meta => "meta",
        }
    }

    /// Class of the operation with this number.
    pub fn of(op: u8) -> Self {
        match op {
            0..32 => Self::Read,
            32..64 => Self::Write,
            64..96 => Self::Sync,
            _ => Self::Meta,
        }
    }
}

/// Number and name of every operation (`Event::op`).
#[rustfmt::skip]
pub const OPERATIONS: [(u8, &str); 54] = [
    (0, "read"), (1, "pread64"), (2, "readv"), (3, "preadv"),
    (4, "preadv2"), (5, "aio_pread"), (6, "aio_preadv"), (7, "uring_read"),
    (8, "uring_readv"), (9, "uring_read_fixed"), (10, "sendfile_in"), (11, "splice_in"),
    (12, "copy_in"), (13, "fault_read"), (14, "fault_around"), (31, "device_read"), (32, "write"),
    (33, "pwrite64"), (34, "writev"), (35, "pwritev"), (36, "pwritev2"),
    (37, "aio_pwrite"), (38, "aio_pwritev"), (39, "uring_write"), (40, "uring_writev"),
    (41, "uring_write_fixed"), (42, "sendfile_out"), (43, "splice_out"), (44, "copy_out"),
    (45, "fault_write"), (46, "fault_around_write"), (63, "device_write"), (64, "fsync"), (65, "fdatasync"), (66, "sync_file_range"),
    (67, "syncfs"), (68, "sync"), (69, "msync"), (70, "aio_fsync"),
    (71, "aio_fdsync"), (72, "uring_fsync"), (95, "device_flush"), (96, "open"), (97, "create"),
    (98, "close"), (99, "unlink"), (100, "rename"), (101, "link"),
    (102, "truncate"), (103, "ftruncate"), (104, "fallocate"), (105, "fadvise"),
    (106, "mmap"), (107, "munmap"),
];

/// One call, in the format of the rings and of the spool file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// Time of entry, CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// Offset in the file.
    pub offset_bytes: i64,
    /// Time from entry to exit.
    pub latency_ns: u64,
    /// Bytes requested.
    pub size_bytes: u32,
    /// Bytes done, or -errno.
    pub done_bytes: i32,
    /// Number of the file in this recording, from 1.
    pub file_id: u32,
    /// Thread.
    pub tid: u32,
    /// Process.
    pub pid: u32,
    /// Number of the operation, see [`OPERATIONS`].
    pub op: u8,
    /// Bits: 1 direct, 2 append, 4 sync, 8 vectored, 16 at the descriptor's position.
    pub flags: u8,
    /// Number of the control group: 0 for the target, else one of its descendants.
    pub cgroup_slot: u16,
}

/// Operation of the range mapped around a read fault. It is one access together with the fault.
pub const FAULT_AROUND: u8 = 14;
/// The same for a write fault, whose neighbours become writable and dirty with it.
pub const FAULT_AROUND_WRITE: u8 = 46;

/// Names of the sources of operations, by their number in [`Ledger::sources`].
pub const SOURCES: [&str; 4] = ["calls", "rare", "async", "faults"];

/// Counts of one source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    /// Operations of the target.
    pub seen: u64,
    /// Operations recorded, or counted in a stream.
    pub kept: u64,
    /// Operations on other kinds of file or on no valid descriptor, and those in progress when tracing began.
    pub filtered: u64,
    /// Lost because the ring was full.
    pub lost_ring: u64,
    /// Dropped intentionally (`drop_every`).
    pub lost_planted: u64,
    /// Lost because the descriptor was closed during the call.
    pub lost_unresolved: u64,
    /// Lost because there was no memory for the state of the thread or stream.
    pub lost_storage: u64,
    /// Reserved.
    pub spare: u64,
}

impl Source {
    /// Sum of all losses.
    pub fn lost(&self) -> u64 {
        self.lost_ring + self.lost_planted + self.lost_unresolved + self.lost_storage
    }

    /// Combine two field by field.
    pub fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            seen: join(self.seen, other.seen),
            kept: join(self.kept, other.kept),
            filtered: join(self.filtered, other.filtered),
            lost_ring: join(self.lost_ring, other.lost_ring),
            lost_planted: join(self.lost_planted, other.lost_planted),
            lost_unresolved: join(self.lost_unresolved, other.lost_unresolved),
            lost_storage: join(self.lost_storage, other.lost_storage),
            spare: 0,
        }
    }
}

/// Counts of one CPU, and the position in its ring. The last ledger is shared, see `bpf/books.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// Records put into the ring since loading.
    pub head: u64,
    /// Nonzero while a program uses this ledger.
    pub busy: u64,
    /// Drafts of paths in use.
    pub drafting: u64,
    /// Records that went to the overflow ring (shared ledger only).
    pub overflowed: u64,
    /// 32-bit calls; they are not decoded and not in `seen`.
    pub compat: u64,
    /// Files whose path was lost.
    pub nameless: u64,
    /// Number of random draws for the latency sample.
    pub draws: u64,
    /// Reserved.
    pub spare: u64,
    /// Counts by source.
    pub sources: [Source; 6],
    /// Records taken out of the ring.
    pub tail: u64,
    /// Padding of the cache line.
    pub spare_too: [u64; 7],
}

impl Ledger {
    /// Sum of all sources.
    pub fn total(&self) -> Source {
        let none = Source::default();
        (self.sources.iter()).fold(none, |sum, one| sum.with(one, u64::wrapping_add))
    }

    /// Combine the counts field by field. Head and tail are positions and are omitted.
    pub fn with(&self, other: &Self, join: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        let mut sources = self.sources;
        for (own, added) in sources.iter_mut().zip(&other.sources) {
            *own = own.with(added, join);
        }
        Self {
            overflowed: join(self.overflowed, other.overflowed),
            compat: join(self.compat, other.compat),
            nameless: join(self.nameless, other.nameless),
            sources,
            ..Self::default()
        }
    }
}

/// Classes of a stream's size histogram: floor(log2(bytes)).
pub const SIZE_CLASSES: usize = 32;
/// Maximum number of samples of blocks in an epoch.
pub const SAMPLES: usize = 512;

/// Counts of one file in one direction (mode `count`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Counter {
    pub calls: u64,
    pub errors: u64,
    pub asked_bytes: u64,
    pub done_bytes: u64,
}

/// Current epoch of one thread on one file in one direction (mode `pattern`).
///
/// In the spool of mode `pattern` it is followed by `samples` values of type `u32`: the upper halves of the hashes of
/// the blocks that `looked` requests jumped to, for every fourth block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Stream {
    pub file_id: u32,
    pub tid: u32,
    pub pid: u32,
    pub kind: u32,
    pub requests: u32,
    pub errors: u32,
    pub empty: u32,
    pub steps: u32,
    pub zero: u32,
    pub near: u32,
    pub forward: u32,
    pub reverse: u32,
    pub higher: u32,
    pub cycle: [u32; 4],
    pub chained: u32,
    pub chains: u32,
    pub longest: u32,
    pub open_sum: u64,
    pub done_bytes: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    pub sampled_ns: u64,
    pub sampled: u32,
    pub least_size: u32,
    pub most_size: u32,
    pub samples: u32,
    pub looked: u32,
    pub spare: u32,
    pub lowest: i64,
    pub highest: i64,
    pub size_class: [u32; SIZE_CLASSES],
    pub distances: [i64; 4],
    pub last_offset: i64,
    pub last_end: i64,
    pub number: u32,
    pub hot_count: u32,
    pub hot_last: u32,
    pub notebook: u32,
    pub started_ns: u64,
    pub joint: u32,
    pub spare_too: u32,
}

impl Stream {
    /// True if it counts reads and writes together. The streams of each direction include the same operations.
    pub fn is_joint(&self) -> bool {
        self.kind >= kind::JOINT
    }
}

/// Notebook of a non-sequential stream in mode `pattern`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Notebook {
    pub chains: [u64; 256],
    pub samples: [u32; SAMPLES],
}

/// Kinds of stream.
#[allow(missing_docs)]
pub mod kind {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FAULT_READ: u32 = 2;
    pub const FAULT_WRITE: u32 = 3;
    /// Reads and writes together: this value plus the kind of the stream that it began as a copy of.
    pub const JOINT: u32 = 4;
}

/// Header of a file's announcement. The components of the path follow, from the file upwards, each with a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Introduction {
    pub file_id: u32,
    pub device: u32,
    pub inode: u64,
    pub size_bytes: i64,
    pub t_ns: u64,
    pub resident_pages: u64,
    pub generation: u32,
    pub magic: u32,
    pub path_bytes: u32,
    pub unlinked: u8,
    pub complete: u8,
    pub directory: u8,
    pub pad: u8,
}

/// Header of one name in a call; its bytes follow. Its `file_id` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct NamePiece {
    pub file_id: u32,
    pub tid: u32,
    pub t_ns: u64,
    pub result: i64,
    pub op: u32,
    pub which: u32,
    pub bytes: u32,
    pub directory: u8,
    pub complete: u8,
    pub pad: [u8; 2],
    pub flags: u64,
    pub link_of: u64,
}

/// Sums of one kind of rare operation on one file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct OperationSum {
    pub calls: u64,
    pub errors: u64,
    pub time_ns: u64,
    pub longest_ns: u64,
}

/// Join the components of an announcement: `b"db\0var\0"` becomes `/var/db`.
pub fn path_of(components: &[u8], complete: bool) -> Vec<u8> {
    let mut path = Vec::with_capacity(components.len() + 1);
    let trimmed = components.strip_suffix(b"\0").unwrap_or(components);
    for part in trimmed.rsplit(|&byte| byte == 0) {
        if complete || !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn sizes_are_those_of_the_programs() {
        assert_eq!(size_of::<Event>(), 48);
        assert_eq!(size_of::<Source>(), 64);
        assert_eq!(size_of::<Ledger>(), 512);
        assert_eq!(offset_of!(Ledger, tail), 448);
        assert_eq!(size_of::<Stream>(), 368);
        assert_eq!(size_of::<Notebook>(), 4096);
        assert_eq!(size_of::<Introduction>(), 56);
        assert_eq!(size_of::<NamePiece>(), 56);
        assert_eq!(size_of::<OperationSum>(), 32);
    }

    #[test]
    fn operations_have_the_numbers_of_the_programs() {
        let header = include_str!("bpf/layout.h");
        let mut next = 0u8;
        let mut operations = Vec::new();
        for line in header.lines().map(str::trim) {
            let Some(rest) = line.strip_prefix("OP_") else {
                continue;
            };
            let (name, number) = rest
                .trim_end_matches(',')
                .split_once(" = ")
                .unwrap_or((rest.trim_end_matches(','), ""));
            next = number.parse().unwrap_or(next);
            operations.push((next, name.to_lowercase()));
            next += 1;
        }
        let declared: Vec<_> = OPERATIONS
            .iter()
            .map(|&(n, name)| (n, name.to_owned()))
            .collect();
        assert_eq!(operations, declared);
    }

    #[test]
    fn components_become_a_path() {
        assert_eq!(path_of(b"x\0db\0var\0", true), b"/var/db/x");
        assert_eq!(path_of(b"x\n\xff\0", true), b"/x\n\xff");
        assert_eq!(path_of(b"x\0db\0", false), b"db/x");
    }
}
