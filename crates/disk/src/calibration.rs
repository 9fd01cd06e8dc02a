//! How long a request takes that the device serves in no time: measured through the mount.
//!
//! While a disk is being put up, its root has a hidden file of zeros whose requests are answered a
//! fixed [`SERVICE_NS`] after their arrival, through the same readers and timers as all others. A
//! child process reads and writes it directly in two sizes; the median of what it sees beyond the
//! service time, at 4 KiB and at 1 MiB, gives the two numbers of an [`Overhead`]. A child, because
//! a process that waits for its own mount could not be killed.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use penstock_daemon::clock::now_ns;
use penstock_daemon::Error;

use crate::config::{Compensation, Overhead};
use crate::disk::Disk;
use crate::inode::ROOT;

/// Number of the hidden file.
pub const INODE: u64 = u64::MAX - 1;
/// Service time of its requests.
pub const SERVICE_NS: u64 = 400_000;
const NAME: &str = ".penstock-calibration";
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
const ROUNDS: usize = 17;
static ZEROS: [u8; LARGE] = [0; LARGE];

/// Whether `name` in the directory `parent` is the hidden file.
pub fn is_name(parent: u64, name: &OsStr) -> bool {
    parent == ROOT && name == NAME
}

/// Its attributes.
pub fn attributes() -> FileAttr {
    FileAttr {
        ino: INodeNo(INODE),
        size: LARGE as u64,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o600,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Its content.
pub fn zeros(size: u32) -> &'static [u8] {
    &ZEROS[..(size as usize).min(LARGE)]
}

/// Runs in the child: no allocation, system calls only. Times go to `out`.
///
/// # Safety
/// `buffer` must be valid for [`LARGE`] bytes.
unsafe fn measure(path: &CString, buffer: *mut libc::c_void, out: i32) -> i32 {
    let fd = libc::open(
        path.as_ptr(),
        libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC,
    );
    if fd < 0 {
        return 1;
    }
    let mut times = [0u64; 4 * ROUNDS];
    for round in 0..ROUNDS {
        for (case, size) in [(0, SMALL), (1, LARGE), (2, SMALL), (3, LARGE)] {
            let began = now_ns();
            let done = if case < 2 {
                libc::pread(fd, buffer, size, 0)
            } else {
                libc::pwrite(fd, buffer, size, 0)
            };
            times[case * ROUNDS + round] = now_ns() - began;
            if done != size as isize {
                return 2;
            }
        }
    }
    let bytes = std::mem::size_of_val(&times);
    i32::from(libc::write(out, times.as_ptr().cast(), bytes) != bytes as isize)
}

fn median(times: &mut [u64]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].saturating_sub(SERVICE_NS) as f64
}

fn line(small_ns: f64, large_ns: f64) -> Overhead {
    let per_byte_ns = ((large_ns - small_ns) / (LARGE - SMALL) as f64).max(0.0);
    Overhead {
        base_ns: (small_ns - per_byte_ns * SMALL as f64).max(0.0),
        per_byte_ns,
    }
}

/// Measures the path overhead of a mounted disk.
pub fn calibrate(disk: &Disk) -> Result<Compensation, Error> {
    disk.calibration_service_ns
        .store(SERVICE_NS, Ordering::Relaxed);
    let lateness = || {
        disk.calibration_lateness_ns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    lateness().clear();
    let times = through_child(disk);
    disk.calibration_service_ns.store(0, Ordering::Relaxed);
    let mut times = times?;
    let mut late = std::mem::take(&mut *lateness());
    late.sort_unstable();
    let lateness_ns = late
        .get(late.len() / 2)
        .map_or(0.0, |&median_ns| median_ns as f64);
    let mut each = times.chunks_exact_mut(ROUNDS).map(median);
    let mut next = || each.next().unwrap_or(0.0);
    let (read_small, read_large) = (next(), next());
    let (write_small, write_large) = (next(), next());
    Ok(Compensation {
        read: line(read_small, read_large),
        write: line(write_small, write_large),
        lateness_ns,
    })
}

fn through_child(disk: &Disk) -> Result<Vec<u64>, Error> {
    let what = || format!("measuring the path overhead of {}", disk.mount.display());
    let path = CString::new(disk.mount.join(NAME).as_os_str().as_bytes())
        .map_err(|_| Error::Bad(format!("mount point {:?} has a null byte", disk.mount)))?;
    // SAFETY: mmap gives page-aligned memory; the child uses system calls only and leaves by
    // _exit; every descriptor is closed once.
    unsafe {
        let buffer = libc::mmap(
            std::ptr::null_mut(),
            LARGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        );
        if buffer == libc::MAP_FAILED {
            return Err(Error::last(what()));
        }
        let mut pipe = [0; 2];
        if libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(Error::last(what()));
        }
        let child = libc::fork();
        if child == 0 {
            // Let go of /dev/fuse, or the mount would outlive the server by this child.
            libc::dup2(pipe[1], 3);
            libc::syscall(libc::SYS_close_range, 4u32, u32::MAX, 0u32);
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, LARGE);
            libc::_exit(measure(&path, buffer, 3));
        }
        libc::close(pipe[1]);
        let mut times = vec![0u64; 4 * ROUNDS];
        let bytes = 8 * times.len();
        let got = if child > 0 {
            read_all(pipe[0], times.as_mut_ptr().cast(), bytes)
        } else {
            0
        };
        libc::close(pipe[0]);
        libc::munmap(buffer, LARGE);
        if child < 0 {
            return Err(Error::last(what()));
        }
        if got != bytes {
            libc::kill(child, libc::SIGKILL);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        if got != bytes {
            return Err(Error::Bad(format!("{}: the mount does not answer", what())));
        }
        Ok(times)
    }
}

/// Reads until `bytes` are there, the end, or ten seconds without any.
unsafe fn read_all(fd: i32, into: *mut u8, bytes: usize) -> usize {
    let mut got = 0;
    while got < bytes {
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        if libc::poll(&mut poll, 1, Duration::from_secs(10).as_millis() as i32) <= 0 {
            break;
        }
        let more = libc::read(fd, into.add(got).cast(), bytes - got);
        if more <= 0 {
            break;
        }
        got += more as usize;
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_goes_through_both_measurements() {
        let overhead = line(20_000.0, 230_000.0);
        assert_eq!(overhead.of(SMALL as u32), 20_000);
        assert!(overhead.of(LARGE as u32).abs_diff(230_000) <= 1);
    }

    #[test]
    fn median_is_without_the_service_time() {
        let mut times: Vec<u64> = (0..ROUNDS as u64).map(|i| SERVICE_NS + 1000 * i).collect();
        assert_eq!(median(&mut times), 8000.0);
    }
}
