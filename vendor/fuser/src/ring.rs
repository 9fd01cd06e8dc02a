//! Requests over io_uring (Linux 6.14 and later) instead of reads and writes of `/dev/fuse`.
//!
//! The kernel has one queue per possible processor. Each queue has a number of entries: memory for the headers
//! and the payload of a request. An entry is registered once by a command in an io_uring; the command completes
//! when a request is in the entry. The next command returns the reply and fetches the next request.
//!
//! One thread serves one ring, which has the queue of one processor that this process may use (more on hosts
//! with many processors), and a share of the queues of all others. Replies of other threads are handed to the
//! ring's thread, because the kernel delivers the next request to the thread that submitted the command.
//!
//! Forgets and interrupts still arrive through `/dev/fuse`.
//!
//! Source: Documentation/filesystems/fuse/fuse-io-uring.rst, include/uapi/linux/fuse.h.

use std::fmt;
use std::io;
use std::io::IoSlice;
use std::mem::offset_of;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::thread::ThreadId;
use std::time::Duration;

use io_uring::IoUring;
use io_uring::cqueue;
use io_uring::opcode;
use io_uring::squeue;
use io_uring::types;
use log::debug;
use log::error;
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::Filesystem;
use crate::ll::RequestId;
use crate::ll::fuse_abi::fuse_in_header;
use crate::ll::fuse_abi::fuse_out_header;
use crate::request::RequestWithSender;
use crate::session::SessionEventLoop;

const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_ent_in_out`.
#[repr(C)]
struct EntInOut {
    flags: u64,
    commit_id: u64,
    payload_sz: u32,
    padding: u32,
    reserved: u64,
}

/// `struct fuse_uring_req_header`.
#[repr(C)]
struct Headers {
    in_out: [u8; 128],
    op_in: [u8; 128],
    ent: EntInOut,
}

/// `struct fuse_uring_cmd_req`, in the 80 bytes of a large submission.
#[repr(C)]
struct CmdReq {
    flags: u64,
    commit_id: u64,
    qid: u16,
    padding: [u8; 6],
}

const PAGE: usize = 4096;
/// Offset of a short reply in an entry's first page.
const SHORT_AT: usize = 1024;
/// Largest reply that waits there until the request is dispatched: its payload may still be in use.
const SHORT: usize = 1024;
/// Offset of the iovec of an entry, in its first page.
const IOVEC_AT: usize = 512;
/// Rings, and threads, of a session at most.
const MOST_RINGS: usize = 16;
/// Entries of a ring at most; the kernel has room for twice as many submissions.
const MOST_ENTRIES: usize = 16_384;
/// Marks the completion that wakes the thread.
const WAKE: u64 = u64::MAX;

/// What a ring's thread does until the next request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pause {
    /// Wait for a request.
    Forever,
    /// Wait for a request, at most so long.
    For(Duration),
    /// Look for a request, and return at once.
    Poll,
}

/// Work of a ring's thread beside requests: replies that are due later.
pub trait Pacer {
    /// Does what is due; the result is how long the thread may wait. Replies are returned afterwards.
    fn work(&mut self) -> Pause;

    /// The thread has looked for requests, and is about to dispatch those that it found.
    fn looked(&mut self);
}

/// How a session serves its rings.
pub struct Rings {
    /// Entries of each queue: requests that may be in progress at once, per processor.
    pub depth: u16,
    /// Binds the thread of a ring to the processor of its first queue. Good for threads that reply at once: the
    /// program that waits runs there next. Bad for threads that wait for a time: they take it from the program.
    pub bound: bool,
    /// Makes the pacer of a ring, in the thread that serves it. The waker wakes that thread.
    pub pacer: Box<dyn Fn(Waker) -> Box<dyn Pacer> + Send + Sync>,
    /// Called in the thread of a ring that ends with an error after all are registered. Requests of its queues
    /// get no reply: the connection is to be aborted.
    pub failed: Box<dyn Fn(&io::Error) + Send + Sync>,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("depth", &self.depth).finish()
    }
}

/// Wakes the thread of a ring from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Queues>);

impl Waker {
    /// Makes the thread call its pacer.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// Memory of the entries of a ring.
struct Memory {
    start: *mut u8,
    size: usize,
}

// SAFETY: the pointer is to a private mapping; each entry is used by one thread at a time (see `Queues`).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory {
            start: start.cast(),
            size,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.start.cast(), self.size) };
    }
}

/// A reply that its thread has yet to return: of which entry, and whether its payload is the short one.
#[derive(Clone, Copy)]
struct Answered {
    entry: u32,
    short: bool,
}

/// What the thread of a ring shares with replies.
///
/// An entry belongs to the kernel from its command to the completion of it, then to the ring's thread until
/// the request is dispatched, and then to the reply until it is sent: `send` is called once per request.
struct Queues {
    memory: Memory,
    stride: usize,
    payload: usize,
    thread: ThreadId,
    wake: OwnedFd,
    answered: Mutex<Vec<Answered>>,
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues")
            .field("payload", &self.payload)
            .finish()
    }
}

impl Queues {
    fn new(entries: usize, payload: usize) -> io::Result<Self> {
        let payload = payload.next_multiple_of(PAGE);
        let stride = PAGE + payload;
        // SAFETY: no pointers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Queues {
            memory: Memory::new(stride * entries)?,
            stride,
            payload,
            thread: thread::current().id(),
            // SAFETY: just made.
            wake: unsafe { OwnedFd::from_raw_fd(wake) },
            answered: Mutex::new(Vec::with_capacity(entries)),
        })
    }

    fn page(&self, entry: u32) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.memory.start.add(self.stride * entry as usize) }
    }

    fn headers(&self, entry: u32) -> *mut Headers {
        self.page(entry).cast()
    }

    fn payload_of(&self, entry: u32) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.page(entry).add(PAGE) }
    }

    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: a descriptor and eight bytes. It fails only if the counter is full: then the thread wakes.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn slept(&self) {
        let mut count = [0u8; 8];
        // SAFETY: a descriptor and eight bytes.
        unsafe {
            libc::read(
                self.wake.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
    }

    fn answer(&self, answered: Answered) {
        let first = {
            let mut all = self.answered.lock();
            all.push(answered);
            all.len() == 1
        };
        if first && thread::current().id() != self.thread {
            self.wake();
        }
    }
}

/// Sends the reply to a request that came over a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingSender {
    queues: Arc<Queues>,
    entry: u32,
}

impl RingSender {
    /// The payload of the entry. Only for requests that were copied before they were dispatched.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let start = self.queues.payload_of(self.entry);
        // SAFETY: within the mapping, which is zeroed or written; the entry is ours until it is answered.
        unsafe { std::slice::from_raw_parts_mut(start, self.queues.payload) }
    }

    /// Replies with the first bytes of the payload.
    pub(crate) fn send_in_place(&self, unique: RequestId, length: usize) {
        let length = length.min(self.queues.payload);
        let header = fuse_out_header {
            len: (size_of::<fuse_out_header>() + length) as u32,
            error: 0,
            unique: unique.0,
        };
        self.finish(header.as_bytes(), length, false);
    }

    /// Hands the entry over with a header, at most 128 bytes, and a payload that is there.
    fn finish(&self, header: &[u8], length: usize, short: bool) {
        // SAFETY: within the entry's first page; the entry is ours until it is answered.
        unsafe {
            ptr::copy_nonoverlapping(header.as_ptr(), self.queues.page(self.entry), header.len());
            (*self.queues.headers(self.entry)).ent.payload_sz = length as u32;
        }
        self.queues.answer(Answered {
            entry: self.entry,
            short,
        });
    }

    /// Sends the header, which is the first slice, and the payload.
    pub(crate) fn send(&self, data: &[IoSlice<'_>]) -> io::Result<()> {
        let Some((header, rest)) = data.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let length = rest.iter().map(|slice| slice.len()).sum::<usize>();
        let header_fits = header.len() <= 128;
        if !header_fits || length > self.queues.payload {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let short = length <= SHORT;
        let to = if short {
            // SAFETY: within the entry's first page.
            unsafe { self.queues.page(self.entry).add(SHORT_AT) }
        } else {
            self.queues.payload_of(self.entry)
        };
        let mut at = 0;
        for slice in rest {
            // SAFETY: the lengths are checked; the entry is ours until it is answered.
            unsafe { ptr::copy_nonoverlapping(slice.as_ptr(), to.add(at), slice.len()) };
            at += slice.len();
        }
        self.finish(header, length, short);
        Ok(())
    }
}

/// False for a request, and for a command that is to be submitted again.
fn refused(result: i32) -> bool {
    result < 0 && ![-libc::EAGAIN, -libc::EINTR].contains(&result)
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

fn new_ring(entries: u32) -> io::Result<Ring> {
    let mut builder = Ring::builder();
    builder
        .setup_cqsize(entries * 2)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun();
    builder.build(entries)
}

/// Processors that the kernel may have a queue for: those that are possible.
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().unwrap_or("");
    last.parse::<usize>()
        .map(|last| last + 1)
        .map_err(|_| io::Error::other(format!("found possible processors {text:?}")))
}

/// Processors on which this process may run.
fn own_processors() -> Vec<usize> {
    // SAFETY: a zeroed set of the stated size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &set))
            .collect()
    }
}

/// Binds the calling thread to a processor. Where that fails, it runs anywhere.
fn stay_on(cpu: u16) {
    // SAFETY: a zeroed set of the stated size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu.into(), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// True if this process can set up rings of the kind that is used here.
pub fn rings_possible() -> bool {
    new_ring(2).is_ok() && possible_processors().is_ok()
}

/// The numbers of the queues of each ring.
pub(crate) fn layout() -> io::Result<Vec<Vec<u16>>> {
    let possible = possible_processors()?;
    let mut own: Vec<usize> = own_processors();
    own.retain(|&cpu| cpu < possible);
    if own.is_empty() {
        own.push(0);
    }
    let others: Vec<usize> = (0..possible).filter(|cpu| !own.contains(cpu)).collect();
    let mut rings = vec![Vec::new(); own.len().min(MOST_RINGS)];
    let count = rings.len();
    for (number, cpu) in own.into_iter().chain(others).enumerate() {
        rings[number % count].push(cpu as u16);
    }
    Ok(rings)
}

/// One ring, in the thread that serves it.
struct Served<'a, FS: Filesystem> {
    ring: Ring,
    queues: Arc<Queues>,
    device: RawFd,
    qids: Vec<u16>,
    event_loop: &'a SessionEventLoop<FS>,
    /// Entries that have a command in the kernel, or a request.
    live: usize,
    /// Completions that are not looked at yet: entry and result.
    completed: Vec<(u64, i32)>,
    scratch: Vec<u8>,
}

impl<FS: Filesystem> Served<'_, FS> {
    /// The command that returns an entry's reply and fetches the next request, or registers a new entry.
    fn command(&self, entry: u32) -> squeue::Entry128 {
        let qid = self.qids[entry as usize / self.depth()];
        // SAFETY: within the entry's first page, which is ours; zero until there is a request.
        let commit_id = unsafe { (*self.queues.headers(entry)).ent.commit_id };
        let command = if commit_id == 0 {
            CMD_REGISTER
        } else {
            CMD_COMMIT_AND_FETCH
        };
        let request = CmdReq {
            flags: 0,
            commit_id,
            qid,
            padding: [0; 6],
        };
        let mut bytes = [0u8; 80];
        // SAFETY: plain data, smaller than the bytes.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::from_ref(&request).cast::<u8>(),
                bytes.as_mut_ptr(),
                size_of::<CmdReq>(),
            );
        }
        let mut submission = opcode::UringCmd80::new(types::Fd(self.device), command)
            .cmd(bytes)
            .build()
            .user_data(u64::from(entry));
        if command == CMD_REGISTER {
            // The two areas of the entry: `addr` and `len` of `struct io_uring_sqe`, for which the builder has
            // no setter.
            let page = self.queues.page(entry);
            // SAFETY: within the first page; a submission is 128 bytes of plain data.
            unsafe {
                let areas: *mut libc::iovec = page.add(IOVEC_AT).cast();
                areas.write(libc::iovec {
                    iov_base: page.cast(),
                    iov_len: size_of::<Headers>(),
                });
                areas.add(1).write(libc::iovec {
                    iov_base: self.queues.payload_of(entry).cast(),
                    iov_len: self.queues.payload,
                });
                let raw: *mut u8 = ptr::from_mut(&mut submission).cast();
                raw.add(16).cast::<u64>().write(areas as u64);
                raw.add(24).cast::<u32>().write(2);
            }
        }
        submission
    }

    fn depth(&self) -> usize {
        (self.queues.memory.size / self.queues.stride) / self.qids.len()
    }

    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what it points to lives as long as the ring.
        if unsafe { self.ring.submission().push(submission) }.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(submission) }.map_err(io::Error::other)
    }

    fn watch_wake(&mut self) -> io::Result<()> {
        let wake = types::Fd(self.queues.wake.as_raw_fd());
        let poll = opcode::PollAdd::new(wake, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(WAKE);
        self.push(&poll.into())
    }

    fn register(&mut self) -> io::Result<()> {
        let entries = self.depth() * self.qids.len();
        for entry in 0..entries as u32 {
            let submission = self.command(entry);
            self.push(&submission)?;
            self.live += 1;
        }
        self.watch_wake()?;
        self.enter(Pause::Poll)?;
        // A registration that is refused completes at once.
        match self.completed.iter().find(|(_, result)| refused(*result)) {
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
            None => Ok(()),
        }
    }

    /// Queues the commands that return the replies.
    fn commit(&mut self, batch: &mut Vec<Answered>) -> io::Result<()> {
        std::mem::swap(&mut *self.queues.answered.lock(), batch);
        for answered in batch.drain(..) {
            if answered.short {
                // SAFETY: both are in the entry, which is ours, and do not overlap.
                unsafe {
                    let length = (*self.queues.headers(answered.entry)).ent.payload_sz as usize;
                    ptr::copy_nonoverlapping(
                        self.queues.page(answered.entry).add(SHORT_AT),
                        self.queues.payload_of(answered.entry),
                        length,
                    );
                }
            }
            let submission = self.command(answered.entry);
            self.push(&submission)?;
        }
        Ok(())
    }

    fn enter(&mut self, pause: Pause) -> io::Result<()> {
        const GET_EVENTS: u32 = 1;
        let entered = match pause {
            Pause::Forever => self.ring.submit_and_wait(1),
            Pause::For(time) => {
                let time = types::Timespec::from(time);
                let arguments = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
            Pause::Poll => {
                let waiting = self.ring.submission().len() as u32;
                // SAFETY: no arguments.
                unsafe {
                    self.ring
                        .submitter()
                        .enter::<libc::sigset_t>(waiting, 0, GET_EVENTS, None)
                }
            }
        };
        let timed_out = [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY];
        match entered {
            Err(error) if !error.raw_os_error().is_some_and(|e| timed_out.contains(&e)) => {
                return Err(error);
            }
            _ => {}
        }
        let done = self.ring.completion();
        self.completed
            .extend(done.map(|c| (c.user_data(), c.result())));
        Ok(())
    }

    /// Takes the request in an entry to the filesystem.
    fn dispatch(&mut self, entry: u32) {
        let headers = self.queues.headers(entry);
        // SAFETY: the command has completed: the entry is ours, and has a request.
        let (length, payload_size) = unsafe {
            let header: *const fuse_in_header = (*headers).in_out.as_ptr().cast();
            ((*header).len as usize, (*headers).ent.payload_sz as usize)
        };
        let head = size_of::<fuse_in_header>();
        let before = length.saturating_sub(payload_size);
        let fits = before >= head && before - head <= 128 && payload_size <= self.queues.payload;
        if !fits {
            error!("found a request of {length} bytes with a payload of {payload_size}");
            return;
        }
        let sender = RingSender {
            queues: self.queues.clone(),
            entry,
        };
        // A request as `/dev/fuse` has it is one run of bytes. The payload stays where it is if it is long: the
        // rest is put before it, at the end of the first page.
        let request: &[u8] = if length <= SHORT {
            self.scratch.clear();
            // SAFETY: the lengths are checked.
            unsafe {
                let parts = [
                    ((*headers).in_out.as_ptr(), head),
                    ((*headers).op_in.as_ptr(), before - head),
                    (self.queues.payload_of(entry).cast_const(), payload_size),
                ];
                for (part, size) in parts {
                    self.scratch
                        .extend_from_slice(std::slice::from_raw_parts(part, size));
                }
            }
            &self.scratch
        } else {
            // SAFETY: the lengths are checked; the first page has room for both headers at its end.
            unsafe {
                let payload = self.queues.payload_of(entry);
                let start = payload.sub(before);
                ptr::copy_nonoverlapping((*headers).in_out.as_ptr(), start, head);
                ptr::copy_nonoverlapping((*headers).op_in.as_ptr(), start.add(head), before - head);
                std::slice::from_raw_parts(start, length)
            }
        };
        match RequestWithSender::from_ring(self.event_loop.ch.sender(), sender, request) {
            Some(request) => request.dispatch(self.event_loop),
            None => error!("found an invalid request"),
        }
    }

    fn serve(&mut self, pacer: &mut dyn Pacer) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            pacer.looked();
            let mut completed = std::mem::take(&mut self.completed);
            for (entry, result) in completed.drain(..) {
                if entry == WAKE {
                    self.queues.slept();
                    if result < 0 {
                        self.watch_wake()?;
                    }
                } else if result == 0 {
                    self.dispatch(entry as u32);
                } else if refused(result) {
                    // The connection has ended, or the kernel has no use for the entry any more.
                    debug!("entry {entry} ended with {result}");
                    self.live -= 1;
                } else {
                    let submission = self.command(entry as u32);
                    self.push(&submission)?;
                }
            }
            self.completed = completed;
            if self.live == 0 {
                return Ok(());
            }
            let pause = pacer.work();
            self.commit(&mut batch)?;
            self.enter(pause)?;
        }
    }
}

/// Serves the queues of one ring until the connection ends. `ready` hears once they are registered.
pub(crate) fn serve<FS: Filesystem>(
    event_loop: &SessionEventLoop<FS>,
    device: BorrowedFd<'_>,
    qids: Vec<u16>,
    payload: usize,
    rings: &Rings,
    ready: &SyncSender<io::Result<()>>,
) -> io::Result<()> {
    let begin = || -> io::Result<Served<'_, FS>> {
        if let (true, Some(&cpu)) = (rings.bound, qids.first()) {
            stay_on(cpu);
        }
        let depth = usize::from(rings.depth).min(MOST_ENTRIES / qids.len());
        let entries = depth.max(1) * qids.len();
        let queues = Arc::new(Queues::new(entries, payload)?);
        let mut served = Served {
            ring: new_ring(entries as u32 + 1)?,
            queues,
            device: device.as_raw_fd(),
            qids,
            event_loop,
            live: 0,
            completed: Vec::new(),
            scratch: Vec::with_capacity(SHORT),
        };
        served.register()?;
        Ok(served)
    };
    match begin() {
        Ok(mut served) => {
            let mut pacer = (rings.pacer)(Waker(served.queues.clone()));
            let _ = ready.send(Ok(()));
            let result = served.serve(pacer.as_mut());
            if let Err(error) = &result {
                (rings.failed)(error);
            }
            result
        }
        Err(error) => {
            let _ = ready.send(Err(io::Error::from_raw_os_error(
                error.raw_os_error().unwrap_or(libc::EIO),
            )));
            Err(error)
        }
    }
}

// What the kernel expects of the layout.
const _: () = {
    assert!(size_of::<Headers>() == 288);
    assert!(offset_of!(Headers, ent) == 256);
    assert!(size_of::<CmdReq>() == 24);
    assert!(size_of::<Headers>() <= IOVEC_AT);
    assert!(SHORT_AT + SHORT <= PAGE - 256);
    assert!(size_of::<squeue::Entry128>() == 128);
};
