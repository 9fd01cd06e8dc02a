//! Threads that read again as soon as they were answered: how much of a disk programs get.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const SMALL: usize = 4096;

/// A page of a thread's own, as direct reads want it.
#[repr(align(4096))]
struct Page([u8; SMALL]);

/// Reads 4 KiB at random places of the first `bytes` of a file, directly, `depth` threads for `length`; gives
/// the number of reads that ended in time.
pub fn reads(path: &Path, bytes: u64, depth: usize, length: Duration) -> io::Result<u64> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    let pages = (bytes / SMALL as u64).max(1);
    let together = Barrier::new(depth);
    let one = |seed: u64| -> io::Result<u64> {
        let mut page = Page([0; SMALL]);
        let mut state = seed;
        let mut done = 0;
        together.wait();
        let end = Instant::now() + length;
        loop {
            // Numerical Recipes' constants.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % (1 << 32);
            let at = (state >> 8) % pages * SMALL as u64;
            // SAFETY: the page is this thread's own and as long as is read into it.
            let got = unsafe {
                libc::pread(
                    file.as_raw_fd(),
                    page.0.as_mut_ptr().cast(),
                    SMALL,
                    at as libc::off_t,
                )
            };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            if Instant::now() > end {
                return Ok(done);
            }
            done += 1;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64)
            .map(|seed| scope.spawn(move || one(seed)))
            .collect();
        let mut all = 0;
        for thread in threads {
            all += thread
                .join()
                .map_err(|_| io::Error::other("a reader panicked"))??;
        }
        Ok(all)
    })
}
