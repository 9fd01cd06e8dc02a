//! The run's control group: v1 (cpuacct, memory, blkio) and v2 (cpu.stat, memory.*, io.stat, pressure).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::pressure::Pressure;
use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

/// Name of the run's own group. The groups of a virtual node have the name of the node.
pub(super) const RUN: &str = "run";

const MEMORY_V1: &[(&[u8], Metric)] = &[
    (b"total_cache", Metric("page_cache", "B", false)),
    (b"total_rss", Metric("anonymous", "B", false)),
    (b"total_dirty", Metric("dirty", "B", false)),
    (b"total_writeback", Metric("writeback", "B", false)),
    (b"total_pgfault", Metric("page_faults", "1", true)),
    (b"total_pgmajfault", Metric("major_faults", "1", true)),
];
const MEMORY_V2: &[(&[u8], Metric)] = &[
    (b"file", Metric("page_cache", "B", false)),
    (b"anon", Metric("anonymous", "B", false)),
    (b"file_dirty", Metric("dirty", "B", false)),
    (b"file_writeback", Metric("writeback", "B", false)),
    (b"pgfault", Metric("page_faults", "1", true)),
    (b"pgmajfault", Metric("major_faults", "1", true)),
];
const CPU_V2: &[(&[u8], Metric)] = &[
    (b"usage_usec", Metric("cpu_time", "us", true)),
    (b"user_usec", Metric("user_time", "us", true)),
    (b"system_usec", Metric("system_time", "us", true)),
];
const CPU_V2_PARTS: &[(&[u8], Metric)] = &[
    (b"user_usec", Metric("user_time", "us", true)),
    (b"system_usec", Metric("system_time", "us", true)),
];

pub(super) fn sources(name: &str, groups: &BTreeMap<String, PathBuf>) -> Vec<Box<dyn Source>> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let file = |controller: &str, name: &str| {
        groups
            .get(controller)
            .and_then(|group| Reread::if_exists(group.join(name)))
    };
    let exact = file("cpuacct", "cpuacct.usage");
    let parts = if exact.is_some() {
        CPU_V2_PARTS
    } else {
        CPU_V2
    };
    if let Some(file) = exact {
        sources.push(single(name, file, Metric("cpu_time", "ns", true)));
    }
    if let Some(file) = file("unified", "cpu.stat") {
        sources.push(keyed(name, file, parts));
    }
    if let Some(file) = file("memory", "memory.usage_in_bytes") {
        sources.push(single(name, file, Metric("memory", "B", false)));
    }
    if let Some(file) = file("memory", "memory.current") {
        sources.push(single(name, file, Metric("memory", "B", false)));
    }
    if let Some(stat) = file("memory", "memory.stat") {
        let v1 = file("memory", "memory.limit_in_bytes").is_some();
        sources.push(keyed(name, stat, if v1 { MEMORY_V1 } else { MEMORY_V2 }));
    }
    if let Some(file) = file("blkio", "blkio.throttle.io_service_bytes_recursive")
        .or_else(|| file("blkio", "blkio.throttle.io_service_bytes"))
    {
        sources.push(Box::new(Blkio::new(name, file)));
    }
    if let Some(file) = file("blkio", "io.stat") {
        sources.push(Box::new(IoStat::new(name, file)));
    }
    if let Some(group) = groups.get("unified") {
        for resource in ["cpu", "io", "memory"] {
            let path = group.join(format!("{resource}.pressure"));
            if let Some(p) = Pressure::open(&path, "cgroup", name, pressure_name(resource)) {
                sources.push(Box::new(p));
            }
        }
    }
    sources
}

fn pressure_name(resource: &str) -> &'static str {
    match resource {
        "cpu" => "pressure_cpu",
        "io" => "pressure_io",
        _ => "pressure_memory",
    }
}

fn single(name: &str, file: Reread, metric: Metric) -> Box<dyn Source> {
    Box::new(Single {
        name: name.to_owned(),
        file,
        metric,
        series: None,
    })
}

fn keyed(name: &str, file: Reread, fields: &'static [(&'static [u8], Metric)]) -> Box<dyn Source> {
    Box::new(Keyed {
        name: name.to_owned(),
        file,
        fields,
        series: vec![None; fields.len()],
    })
}

/// A file with a single number.
struct Single {
    name: String,
    file: Reread,
    metric: Metric,
    series: Option<u64>,
}

impl Source for Single {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let Metric(metric, unit, cumulative) = self.metric;
        let series = *self
            .series
            .get_or_insert_with(|| sink.series("cgroup", &self.name, metric, unit, cumulative));
        if let Some(value) = words(self.file.read()?).next().and_then(number) {
            sink.put(series, value as f64);
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

/// A file with lines `KEY NUMBER`.
struct Keyed {
    name: String,
    file: Reread,
    fields: &'static [(&'static [u8], Metric)],
    series: Vec<Option<u64>>,
}

impl Source for Keyed {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut pair = words(line);
            let (Some(key), Some(value)) = (pair.next(), pair.next().and_then(number)) else {
                continue;
            };
            let Some(at) = self.fields.iter().position(|(name, _)| *name == key) else {
                continue;
            };
            let Metric(metric, unit, cumulative) = self.fields[at].1;
            let series = *self.series[at]
                .get_or_insert_with(|| sink.series("cgroup", &self.name, metric, unit, cumulative));
            sink.put(series, value as f64);
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

const IO: [Metric; 2] = [
    Metric("read_bytes", "B", true),
    Metric("written_bytes", "B", true),
];

/// Prefix of a device number: empty in the run's own group, else the name of the node.
fn above(name: &str) -> Vec<u8> {
    if name == RUN {
        Vec::new()
    } else {
        format!("{name} ").into_bytes()
    }
}

/// Lines `MAJOR:MINOR Read BYTES` (v1).
struct Blkio {
    above: Vec<u8>,
    file: Reread,
    devices: Entities,
}

impl Blkio {
    fn new(name: &str, file: Reread) -> Self {
        Self {
            above: above(name),
            file,
            devices: Entities::new("cgroup", &IO),
        }
    }
}

fn spaced(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| *b == b' ').filter(|w| !w.is_empty())
}

impl Source for Blkio {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut fields = spaced(line);
            let (Some(device), Some(kind)) = (fields.next(), fields.next()) else {
                continue;
            };
            let offset = match kind {
                b"Read" => 0,
                b"Write" => 1,
                _ => continue,
            };
            if let Some(bytes) = fields.next().and_then(number) {
                let first = self.devices.first(&[&self.above, device].concat(), sink);
                sink.put(first + offset, bytes as f64);
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.file.reads()
    }
}

/// Lines `MAJOR:MINOR rbytes=N wbytes=N …` (v2).
struct IoStat {
    above: Vec<u8>,
    file: Reread,
    devices: Entities,
}

impl IoStat {
    fn new(name: &str, file: Reread) -> Self {
        Self {
            above: above(name),
            file,
            devices: Entities::new("cgroup", &IO),
        }
    }
}

impl Source for IoStat {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut fields = spaced(line);
            let Some(device) = fields.next() else {
                continue;
            };
            for field in fields {
                let (offset, value) = if let Some(value) = field.strip_prefix(b"rbytes=") {
                    (0, value)
                } else if let Some(value) = field.strip_prefix(b"wbytes=") {
                    (1, value)
                } else {
                    continue;
                };
                if let Some(bytes) = number(value) {
                    let first = self.devices.first(&[&self.above, device].concat(), sink);
                    sink.put(first + offset, bytes as f64);
                }
            }
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

    fn sampled(groups: &BTreeMap<String, PathBuf>) -> Memory {
        let mut memory = Memory::default();
        for mut source in sources(RUN, groups) {
            source.sample(&mut memory).unwrap();
        }
        memory
    }

    #[test]
    fn a_recorded_v1_group() {
        let groups = ["memory", "cpuacct", "blkio"]
            .map(|c| (c.to_owned(), fixture("v1").join(c)))
            .into();
        let memory = sampled(&groups);
        assert_eq!(memory.get("cgroup/run/cpu_time"), 123_456_789.0);
        assert_eq!(memory.get("cgroup/run/memory"), 65_445_888.0);
        assert_eq!(memory.get("cgroup/run/page_cache"), 63_004_672.0);
        assert_eq!(memory.get("cgroup/254:0/read_bytes"), 8192.0);
        assert_eq!(memory.get("cgroup/254:0/written_bytes"), 209_715_200.0);
    }

    #[test]
    fn a_recorded_v2_group() {
        let root = fixture("v2");
        let groups = ["memory", "blkio", "unified"]
            .map(|c| (c.to_owned(), root.clone()))
            .into();
        let memory = sampled(&groups);
        assert_eq!(memory.get("cgroup/run/cpu_time"), 987_654.0);
        assert_eq!(memory.get("cgroup/run/memory"), 33_554_432.0);
        assert_eq!(memory.get("cgroup/run/page_cache"), 20_971_520.0);
        assert_eq!(memory.get("cgroup/253:0/written_bytes"), 4096.0);
        assert_eq!(memory.get("cgroup/run/pressure_io_some"), 777.0);
    }

    #[test]
    fn groups_are_named_by_node() {
        let groups = ["memory", "cpuacct", "blkio"]
            .map(|c| (c.to_owned(), fixture("v1").join(c)))
            .into();
        let mut memory = Memory::default();
        for mut source in sources("data-0", &groups) {
            source.sample(&mut memory).unwrap();
        }
        assert_eq!(memory.get("cgroup/data-0/cpu_time"), 123_456_789.0);
        assert_eq!(memory.get("cgroup/data-0 254:0/read_bytes"), 8192.0);
    }

    #[test]
    fn source_needs_a_group() {
        assert!(sources(RUN, &BTreeMap::new()).is_empty());
    }
}
