//! Clocks in nanoseconds.

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec; the clocks used exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, which the kernel stamps packets with.
pub fn real_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Processor time of this process.
pub fn cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}
