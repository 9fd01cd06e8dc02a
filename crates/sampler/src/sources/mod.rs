//! What can be sampled: one file per source, all of one shape.
//!
//! A source opens its files once and reads them anew for each sample. A file that is not there is no failure:
//! that source is absent. Adding a source is a file here and a line in [`all`].

pub(crate) mod block_latency;
mod cgroup;
mod cpu;
mod disk;
mod emulated_disk;
mod filesystem;
mod memory;
mod network;
mod pressure;

use std::collections::HashMap;

use serde_json::Value;

use self::block_latency::Shared;
use crate::config::StartRequest;
use crate::error::Error;
use crate::spool::Sink;

/// Something that is read once per sample.
pub trait Source: Send {
    /// Reads it and puts its values.
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error>;
    /// System calls made so far.
    fn reads(&self) -> u64;
    /// What the receipt is to say of it, under a name.
    fn told(&self) -> Option<(&'static str, Value)> {
        None
    }
}

/// The sources a request asks for and the host has; `latency` where it is to be sampled.
pub(crate) fn all(request: &StartRequest, latency: Option<&Shared>) -> Vec<Box<dyn Source>> {
    let root = request.root.as_path();
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let any = std::iter::once(&request.cgroups).chain(request.nodes.values());
    let first = any.clone().find(|groups| !groups.is_empty());
    sources.extend(cpu::sources(root, first.unwrap_or(&request.cgroups)));
    sources.extend(memory::sources(root));
    sources.extend(disk::sources(root));
    sources.extend(latency.map(block_latency::sources));
    sources.extend(filesystem::sources(root));
    if request.network {
        sources.extend(network::sources(root));
    }
    sources.extend(pressure::sources(root));
    sources.extend(cgroup::sources(cgroup::RUN, &request.cgroups));
    for (node, groups) in &request.nodes {
        sources.extend(cgroup::sources(node, groups));
        if let Some(table) = groups.get(network::OF_NODE) {
            sources.extend(network::of_node(node, table));
        }
    }
    sources.extend(emulated_disk::sources(&request.disks));
    sources
}

/// A metric of an entity: name, unit, whether it only grows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) bool,
);

/// The series of entities that come and go, such as the lines of a table.
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

    /// Whether it has been seen before.
    pub(crate) fn knows(&self, entity: &[u8]) -> bool {
        self.first.contains_key(entity)
    }

    /// Number of the first of the entity's series; the others follow in the order of the metrics.
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
    //! A sink that remembers.

    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use crate::spool::Sink;

    #[derive(Default)]
    pub(crate) struct Memory {
        names: Vec<String>,
        pub(crate) values: BTreeMap<String, f64>,
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

        fn put(&mut self, series: u64, value: f64) {
            self.values
                .insert(self.names[series as usize].clone(), value);
        }
    }

    /// The recorded /proc and control groups of the tests.
    pub(crate) fn fixture(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name)
    }
}
