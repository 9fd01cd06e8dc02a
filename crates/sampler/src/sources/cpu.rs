//! /proc/stat and /proc/loadavg (proc(5)): processor time by state, switches, load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Entities, Metric, Source};
use crate::clock::ticks_per_second;
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

/// Guest time is omitted, because `user` and `nice` include it.
const STATES: [Metric; 8] = [
    Metric("user", "s", true),
    Metric("nice", "s", true),
    Metric("system", "s", true),
    Metric("idle", "s", true),
    Metric("iowait", "s", true),
    Metric("irq", "s", true),
    Metric("softirq", "s", true),
    Metric("steal", "s", true),
];

const TOTALS: [(&[u8], Metric); 4] = [
    (b"ctxt", Metric("context_switches", "1", true)),
    (b"processes", Metric("forks", "1", true)),
    (b"procs_running", Metric("running", "1", false)),
    (b"procs_blocked", Metric("blocked", "1", false)),
];

pub(super) fn sources(
    root: &Path,
    cgroups: &BTreeMap<String, PathBuf>,
) -> impl Iterator<Item = Box<dyn Source>> {
    let stat = Reread::if_exists(root.join("proc/stat")).map(|file| {
        Box::new(Stat {
            file,
            hz: ticks_per_second(),
            cpus: Entities::new("cpu", &STATES),
            total: [None; 4],
        }) as Box<dyn Source>
    });
    let load = Reread::if_exists(root.join("proc/loadavg"))
        .map(|file| Box::new(Load { file, series: None }) as Box<dyn Source>);
    // the parent of the run's cpuacct group has the time of the entire host in nanoseconds
    let exact = cgroups
        .get("cpuacct")
        .and_then(|group| Reread::if_exists(group.parent()?.join("cpuacct.usage")))
        .map(|file| Box::new(RunTime { file, series: None }) as Box<dyn Source>);
    stat.into_iter().chain(load).chain(exact)
}

struct Stat {
    file: Reread,
    hz: f64,
    cpus: Entities,
    total: [Option<u64>; 4],
}

impl Source for Stat {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut fields = words(line);
            let Some(name) = fields.next() else { continue };
            if let Some(rest) = name.strip_prefix(b"cpu") {
                let first = self
                    .cpus
                    .first(if rest.is_empty() { b"all" } else { name }, sink);
                for (series, ticks) in (first..).zip(fields.take(STATES.len()).filter_map(number)) {
                    sink.put(series, ticks as f64 / self.hz);
                }
            } else if let Some(at) = TOTALS.iter().position(|(key, _)| *key == name) {
                let Metric(metric, unit, cumulative) = TOTALS[at].1;
                let series = *self.total[at]
                    .get_or_insert_with(|| sink.series("cpu", "all", metric, unit, cumulative));
                if let Some(value) = fields.next().and_then(number) {
                    sink.put(series, value as f64);
                }
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

struct Load {
    file: Reread,
    series: Option<[u64; 3]>,
}

impl Source for Load {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let series = *self.series.get_or_insert_with(|| {
            ["load_1min", "load_5min", "load_15min"]
                .map(|metric| sink.series("cpu", "all", metric, "1", false))
        });
        for (series, word) in series.into_iter().zip(words(self.file.read()?)) {
            if let Some(load) = std::str::from_utf8(word).ok().and_then(|w| w.parse().ok()) {
                sink.put(series, load);
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

struct RunTime {
    file: Reread,
    series: Option<u64>,
}

impl Source for RunTime {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let series = *self
            .series
            .get_or_insert_with(|| sink.series("cpu", "all", "run_time", "ns", true));
        if let Some(value) = words(self.file.read()?).next().and_then(number) {
            sink.put(series, value as f64);
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fixture, Memory};
    use super::*;

    #[test]
    fn a_recorded_stat_file() {
        let mut memory = Memory::default();
        for mut source in sources(&fixture("host"), &BTreeMap::new()) {
            source.sample(&mut memory).unwrap();
        }
        let hz = ticks_per_second();
        assert_eq!(memory.get("cpu/all/user"), 10_132.0 / hz);
        assert_eq!(memory.get("cpu/all/steal"), 25.0 / hz);
        assert_eq!(memory.get("cpu/cpu1/idle"), 80_001.0 / hz);
        assert_eq!(memory.get("cpu/all/context_switches"), 1_990_473.0);
        assert_eq!(memory.get("cpu/all/blocked"), 3.0);
        assert_eq!(memory.get("cpu/all/load_5min"), 0.31);
        assert!(!memory.values.keys().any(|k| k.contains("guest")));
    }
}
