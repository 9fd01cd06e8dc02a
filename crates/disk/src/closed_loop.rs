//! Closed-loop load: threads that send the next request after each reply, to measure throughput.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const SMALL: usize = 4096;

/// Page-aligned buffer, as direct reads require.
#[repr(align(4096))]
struct Page([u8; SMALL]);

/// Read 4 KiB at random offsets in the first `bytes` of a file with direct I/O, in `depth` threads for
/// `length`. Return the number of reads that completed in time.
pub fn reads(path: &Path, bytes: u64, depth: usize, length: Duration) -> io::Result<u64> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    let file = &file;
    together(vec![(); depth], bytes, length, |(), at| {
        let mut page = Page([0; SMALL]);
        // SAFETY: the page belongs to this thread and is as long as the read.
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
        Ok(())
    })
}

/// Write 4 KiB through the page cache at random offsets in the first `bytes` of each file and flush, in a loop,
/// with one thread per file. Return the number of writes that were flushed in time.
pub fn flushed_writes(paths: &[PathBuf], bytes: u64, length: Duration) -> io::Result<u64> {
    let files = paths
        .iter()
        .map(|path| OpenOptions::new().write(true).open(path))
        .collect::<io::Result<Vec<File>>>()?;
    together(files.iter().collect(), bytes, length, |file, at| {
        file.write_all_at(&[1; SMALL], at)?;
        file.sync_data()
    })
}

/// Call `one` for random pages in a loop, with one thread per item of `what`, all started at the same time.
/// Return the number of calls that completed in time.
fn together<T: Copy + Send>(
    what: Vec<T>,
    bytes: u64,
    length: Duration,
    one: impl Fn(T, u64) -> io::Result<()> + Sync,
) -> io::Result<u64> {
    let pages = (bytes / SMALL as u64).max(1);
    let start = Barrier::new(what.len());
    let request_loop = |item: T, seed: u64| -> io::Result<u64> {
        let mut state = seed;
        let mut done = 0;
        start.wait();
        let end = Instant::now() + length;
        loop {
            // Constants from Numerical Recipes.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % (1 << 32);
            one(item, (state >> 8) % pages * SMALL as u64)?;
            if Instant::now() > end {
                return Ok(done);
            }
            done += 1;
        }
    };
    let request_loop = &request_loop;
    thread::scope(|scope| {
        let threads: Vec<_> = what
            .into_iter()
            .zip(0..)
            .map(|(item, seed)| scope.spawn(move || request_loop(item, seed)))
            .collect();
        let mut all = 0;
        for thread in threads {
            all += thread
                .join()
                .map_err(|_| io::Error::other("a thread of the closed loop panicked"))??;
        }
        Ok(all)
    })
}
