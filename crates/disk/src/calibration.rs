//! Measure the path overhead through the mount: the time of a request beyond its service time.
//!
//! During the measurement, the root of the disk contains a hidden file of zeros. Its requests are answered a
//! fixed time after their arrival, through the same readers and timers as all other requests. That time is the
//! mean service time of the disk, because the wake-up time of an idle processor depends on its idle time. A
//! child process reads and writes the file with direct I/O in two sizes, in batches. The medians of the excess
//! over the service time at 4 KiB and 1 MiB give the two parameters of an [`Overhead`]. The medians of the
//! batches give the confidence interval of the first parameter. The measurement needs a child, because a
//! process that waits for its own mount could not be killed.

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
use crate::known::ROOT;

/// Inode number of the hidden file.
pub const INODE: u64 = u64::MAX - 1;
/// Minimum and maximum service time of its requests. On slower disks the path overhead has little weight.
const SERVICE_NS: [u64; 2] = [20_000, 1_000_000];
const NAME: &str = ".penstock-calibration";
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// Number of batches, and small requests per batch.
const HANDFULS: usize = 9;
const ROUNDS: usize = 7;
/// Large requests per batch.
const LARGE_ROUNDS: usize = 2;
/// Pause between two batches.
const REST_NS: i64 = 3_000_000;
/// Numbers of small and of large requests in one direction, and of all requests.
const SMALL_TIMES: usize = HANDFULS * ROUNDS;
const LARGE_TIMES: usize = HANDFULS * LARGE_ROUNDS;
const TIMES: usize = 2 * (SMALL_TIMES + LARGE_TIMES);
static ZEROS: [u8; LARGE] = [0; LARGE];

/// True if `name` in the directory `parent` is the hidden file.
pub fn is_name(parent: u64, name: &OsStr) -> bool {
    parent == ROOT && name == NAME
}

/// Attributes of the hidden file.
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

/// Content of the hidden file.
pub fn zeros(size: u32) -> &'static [u8] {
    &ZEROS[..(size as usize).min(LARGE)]
}

/// Measure in the child: no allocation, system calls only. Write the times to `out`.
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
    let mut times = [0u64; TIMES];
    for handful in 0..HANDFULS {
        for round in 0..ROUNDS {
            for (write, size) in [(0, SMALL), (1, SMALL), (0, LARGE), (1, LARGE)] {
                let (each, from) = match size {
                    SMALL => (ROUNDS, write * SMALL_TIMES),
                    _ => (LARGE_ROUNDS, 2 * SMALL_TIMES + write * LARGE_TIMES),
                };
                if round >= each {
                    continue;
                }
                let began = now_ns();
                let done = if write == 0 {
                    libc::pread(fd, buffer, size, 0)
                } else {
                    libc::pwrite(fd, buffer, size, 0)
                };
                times[from + handful * each + round] = now_ns() - began;
                if done != size as isize {
                    return 2;
                }
            }
        }
        let rest = libc::timespec {
            tv_sec: 0,
            tv_nsec: REST_NS,
        };
        libc::nanosleep(&rest, std::ptr::null_mut());
    }
    let bytes = std::mem::size_of_val(&times);
    i32::from(libc::write(out, times.as_ptr().cast(), bytes) != bytes as isize)
}

fn median(times: &[u64], service_ns: u64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2].saturating_sub(service_ns) as f64
}

/// Overhead from the times of small and large requests in one direction.
fn overhead(small: &[u64], large: &[u64], service_ns: u64) -> Overhead {
    let small_ns = median(small, service_ns);
    let large_ns = median(large, service_ns);
    let per_byte_ns = ((large_ns - small_ns) / (LARGE - SMALL) as f64).max(0.0);
    let base = |ns: f64| (ns - per_byte_ns * SMALL as f64).max(0.0);
    let mut handfuls: Vec<f64> = small
        .chunks_exact(ROUNDS)
        .map(|few| base(median(few, service_ns)))
        .collect();
    handfuls.sort_by(f64::total_cmp);
    // The population median lies between the second and the eighth of nine batch medians in 96 % of cases.
    Overhead {
        base_ns: base(small_ns),
        per_byte_ns,
        low_ns: handfuls[1],
        high_ns: handfuls[HANDFULS - 2],
    }
}

/// Service times of reads and writes, in nanoseconds, during the measurement of this disk's path overhead.
pub fn services_ns(disk: &Disk) -> [u64; 2] {
    disk.mean_service_s().map(|mean_s| {
        let ns = (mean_s * 1e9) as u64;
        ns.clamp(SERVICE_NS[0], SERVICE_NS[1])
    })
}

/// Measure the path overhead of a mounted disk; its requests take `services_ns`.
pub fn calibrate(disk: &Disk, services_ns: [u64; 2]) -> Result<Compensation, Error> {
    let hold = |ns: [u64; 2]| {
        for (stored, ns) in disk.calibration_service_ns.iter().zip(ns) {
            stored.store(ns, Ordering::Relaxed);
        }
    };
    let lateness = || {
        disk.calibration_lateness_ns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    lateness().clear();
    hold(services_ns);
    let times = through_child(disk);
    hold([0, 0]);
    let times = times?;
    let mut late = std::mem::take(&mut *lateness());
    late.sort_unstable();
    let lateness_ns = late
        .get(late.len() / 2)
        .map_or(0.0, |&median_ns| median_ns as f64);
    let (small, large) = times.split_at(2 * SMALL_TIMES);
    let (read, write) = (small.split_at(SMALL_TIMES), large.split_at(LARGE_TIMES));
    Ok(Compensation {
        read: overhead(read.0, write.0, services_ns[0]),
        write: overhead(read.1, write.1, services_ns[1]),
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
            // Close /dev/fuse, because the child would keep the mount alive after the end of the server.
            libc::dup2(pipe[1], 3);
            libc::syscall(libc::SYS_close_range, 4u32, u32::MAX, 0u32);
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, LARGE);
            libc::_exit(measure(&path, buffer, 3));
        }
        libc::close(pipe[1]);
        let mut times = vec![0u64; TIMES];
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

/// Read until `bytes` bytes are complete, the end of the pipe, or ten seconds without data.
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

    fn taken(service_ns: u64, beyond_ns: impl Fn(usize) -> u64, n: usize) -> Vec<u64> {
        (0..n).map(|i| service_ns + beyond_ns(i)).collect()
    }

    #[test]
    fn fit_passes_through_both_sizes() {
        let small = taken(100_000, |_| 20_000, SMALL_TIMES);
        let large = taken(100_000, |_| 230_000, LARGE_TIMES);
        let overhead_ns = overhead(&small, &large, 100_000);
        assert_eq!(overhead_ns.of(SMALL as u32), 20_000);
        assert!(overhead_ns.of(LARGE as u32).abs_diff(230_000) <= 1);
        assert_eq!(
            (overhead_ns.low_ns, overhead_ns.high_ns),
            (overhead_ns.base_ns, overhead_ns.base_ns)
        );
    }

    #[test]
    fn differing_batches_are_reported() {
        let high = |differ: &[usize]| {
            let slow = |i: usize| {
                if differ.contains(&(i / ROUNDS)) {
                    90_000
                } else {
                    30_000
                }
            };
            let small = taken(100_000, slow, SMALL_TIMES);
            let large = taken(100_000, |_| 30_000, LARGE_TIMES);
            let overhead_ns = overhead(&small, &large, 100_000);
            assert_eq!(
                (overhead_ns.base_ns, overhead_ns.low_ns),
                (30_000.0, 30_000.0)
            );
            overhead_ns.high_ns
        };
        assert_eq!(high(&[3]), 30_000.0, "one of nine is chance");
        assert_eq!(high(&[3, 6]), 90_000.0);
    }
}
