//! Sources of samples, one file each, with a common interface.
//!
//! A source opens its files once and rereads them for each sample. A missing file is no failure: the source is absent.
//! To add a source, add a file here and a line in [`all`].

pub(crate) mod block_latency;
mod cgroup;
mod command;
mod cpu;
mod disk;
mod emulated_disk;
mod filesystem;
mod memory;
mod named_file;
mod network;
mod pressure;
mod process;

use std::collections::HashMap;

use serde_json::Value;

use self::block_latency::Shared;
use crate::config::StartRequest;
use crate::error::Error;
use crate::spool::Sink;

/// A source that is read once per sample.
pub trait Source: Send {
    /// Read the source and add its values to the sample.
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error>;
    /// System calls made so far.
    fn reads(&self) -> u64;
    /// Statistics for the final report, with its name.
    fn stats(&self) -> Option<(&'static str, Value)> {
        None
    }
}

/// Sources with a common name, the first column of their series.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) sources: Vec<Box<dyn Source>>,
}

/// Sources that the request enables and the host offers. `latency` enables block latency.
pub(crate) fn all(request: &StartRequest, latency: Option<&Shared>) -> Vec<Group> {
    let root = request.root.as_path();
    let nodes = || request.nodes.iter();
    let any = std::iter::once(&request.cgroups).chain(request.nodes.values());
    let first = any.clone().find(|groups| !groups.is_empty());
    let interfaces = request.network.then(|| network::sources(root)).flatten();
    let links = nodes().filter_map(|(node, groups)| {
        let table = groups.get(network::OF_NODE)?;
        network::of_node(node, table)
    });
    let of_nodes = nodes().flat_map(|(node, groups)| cgroup::sources(node, groups));
    let row = |name, sources| Group { name, sources };
    let mut table = vec![
        row(
            "cpu",
            cpu::sources(root, first.unwrap_or(&request.cgroups)).collect(),
        ),
        row("memory", memory::sources(root).into_iter().collect()),
        row("disk", disk::sources(root).into_iter().collect()),
        row(
            "block_latency",
            latency.map(block_latency::sources).into_iter().collect(),
        ),
        row(
            "filesystem",
            filesystem::sources(root).into_iter().collect(),
        ),
        row("network", interfaces.into_iter().chain(links).collect()),
        row("psi", pressure::sources(root).collect()),
        row(
            "cgroup",
            cgroup::sources(cgroup::RUN, &request.cgroups)
                .into_iter()
                .chain(of_nodes)
                .collect(),
        ),
        row("emulated_disk", emulated_disk::sources(&request.disks)),
        row("process", process::sources(request)),
        row("file", named_file::sources(&request.files)),
        row("command", command::sources(request)),
    ];
    table.retain(|group| !group.sources.is_empty());
    table
}

/// Metric of an entity: name, unit, true if cumulative.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) bool,
);

/// Series of entities that appear and disappear, such as the lines of a table.
#[derive(Debug)]
pub(crate) struct Entities {
    source: &'static str,
    metrics: &'static [Metric],
    first: HashMap<Vec<u8>, u64>,
}

impl Entities {
    pub(crate) fn new(source: &'static str, metrics: &'static [Metric]) -> Self {
        Self {
            source,
            metrics,
            first: HashMap::new(),
        }
    }

    /// True if the entity has series.
    pub(crate) fn knows(&self, entity: &[u8]) -> bool {
        self.first.contains_key(entity)
    }

    /// Number of the entity's first series; the others follow in the order of the metrics. Registers a new entity.
    pub(crate) fn first(&mut self, entity: &[u8], sink: &mut dyn Sink) -> u64 {
        if let Some(first) = self.first.get(entity) {
            return *first;
        }
        let name = String::from_utf8_lossy(entity);
        let mut first = None;
        for Metric(metric, unit, cumulative) in self.metrics {
            let series = sink.series(self.source, &name, metric, unit, *cumulative);
            first.get_or_insert(series);
        }
        let first = first.unwrap_or_default();
        self.first.insert(entity.to_vec(), first);
        first
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A sink that stores the values.

    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use crate::spool::Sink;

    pub(crate) struct Memory {
        names: Vec<String>,
        pub(crate) values: BTreeMap<String, f64>,
        /// Values in order of arrival: time, series, value.
        pub(crate) put: Vec<(i64, String, f64)>,
        pub(crate) time_ns: i64,
        pub(crate) complete: bool,
    }

    impl Default for Memory {
        fn default() -> Self {
            Self {
                names: Vec::new(),
                values: BTreeMap::new(),
                put: Vec::new(),
                time_ns: 0,
                complete: true,
            }
        }
    }

    impl Memory {
        pub(crate) fn get(&self, name: &str) -> f64 {
            *self
                .values
                .get(name)
                .unwrap_or_else(|| panic!("no {name} among {:?}", self.values.keys()))
        }
    }

    impl Sink for Memory {
        fn series(
            &mut self,
            source: &'static str,
            entity: &str,
            metric: &str,
            _unit: &'static str,
            _cumulative: bool,
        ) -> u64 {
            self.names.push(format!("{source}/{entity}/{metric}"));
            self.names.len() as u64 - 1
        }

        fn put_at(&mut self, time_ns: i64, series: u64, value: f64) {
            let name = &self.names[series as usize];
            self.put.push((time_ns, name.clone(), value));
            self.values.insert(name.clone(), value);
        }

        fn time_ns(&self) -> i64 {
            self.time_ns
        }

        fn complete(&self) -> bool {
            self.complete
        }
    }

    /// Recorded /proc and control groups for tests.
    pub(crate) fn fixture(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name)
    }
}
