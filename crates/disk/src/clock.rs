//! Processor waits of this process and processor time of the host, in nanoseconds.

use std::path::PathBuf;

/// Name prefixes of the threads that serve requests: readers of the FUSE library, ring threads, timers.
const ON_THE_WAY: [&str; 3] = ["fuser", "ring", "timer"];

/// Path of the `schedstat` file and name of a thread of this process; None if it does not serve requests.
pub fn on_the_way(tid: u32) -> Option<(PathBuf, String)> {
    let place = PathBuf::from(format!("/proc/self/task/{tid}"));
    let name = std::fs::read_to_string(place.join("comm")).ok()?;
    let is_on_it = ON_THE_WAY.iter().any(|way| name.starts_with(way));
    is_on_it.then(|| (place.join("schedstat"), name))
}

/// Processor wait of all threads that serve requests, in nanoseconds (schedstat).
pub fn process_wait_ns() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    tasks
        .flatten()
        .filter_map(|task| on_the_way(task.file_name().to_str()?.parse().ok()?))
        .filter_map(|(place, _)| std::fs::read_to_string(place).ok())
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

/// Processor time of the host since boot, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCpu {
    /// Busy time: programs, kernel, interrupts, and time stolen by a hypervisor.
    pub busy_ns: u64,
    /// Time stolen by a hypervisor; part of `busy_ns`.
    pub stolen_ns: u64,
    /// Total time, including idle time.
    pub all_ns: u64,
}

impl HostCpu {
    /// Current values from /proc/stat; zeros if it is unreadable.
    pub fn now() -> Self {
        // SAFETY: a plain query.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        std::fs::read_to_string("/proc/stat")
            .map(|text| Self::parse(&text, u64::try_from(ticks).unwrap_or(100)))
            .unwrap_or_default()
    }

    /// Parse /proc/stat: user nice system idle iowait irq softirq steal (user includes guest time).
    fn parse(text: &str, ticks_per_s: u64) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|word| word.parse().ok())
            .collect();
        let all: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let ns = 1_000_000_000 / ticks_per_s.max(1);
        HostCpu {
            busy_ns: (all - idle) * ns,
            stolen_ns: ticks.get(7).copied().unwrap_or(0) * ns,
            all_ns: all * ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HostCpu;

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let text = "cpu  120 10 60 150 50 0 5 5 7 7\ncpu0 1 1 1 1 1 1 1 1\n";
        let seen = HostCpu::parse(text, 100);
        assert_eq!(seen.busy_ns, 2_000_000_000);
        assert_eq!(seen.stolen_ns, 50_000_000);
        assert_eq!(seen.all_ns, 4_000_000_000);
    }
}
