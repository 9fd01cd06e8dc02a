//! Clocks and the standing of the sampling thread.

fn read(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writing, and the clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> i64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> i64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Lets the calling thread wake up on time: timer slack 1 ns and, where allowed, a better nice value.
pub fn be_punctual() {
    // SAFETY: both calls take numbers only and act on the calling thread; refusal is harmless.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64);
        libc::setpriority(libc::PRIO_PROCESS, 0, -10);
    }
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

/// Whether a process of that pid exists.
pub fn is_alive(pid: i32) -> bool {
    // SAFETY: signal 0 is only a question.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}
