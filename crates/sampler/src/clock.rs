//! Clocks of the spool, scheduling of the sampling thread, and the kernel's ticks.

use penstock_daemon::clock;

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> i64 {
    clock::now_ns() as i64
}

/// Time since boot, ns. The kernel uses this clock for start times of processes.
pub fn since_boot_ns() -> i64 {
    clock::since_boot_ns() as i64
}

/// Processor time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> i64 {
    clock::thread_cpu_ns() as i64
}

/// Reduce the wake-up latency of the calling thread: timer slack of 1 ns and, where permitted, a lower nice value.
pub fn be_punctual() {
    clock::be_punctual();
    // SAFETY: takes numbers only and affects the calling thread; a refusal is harmless.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

/// Ticks per second of the times in /proc/stat.
pub fn ticks_per_second() -> f64 {
    // SAFETY: takes a number only.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 {
        ticks as f64
    } else {
        100.0
    }
}
