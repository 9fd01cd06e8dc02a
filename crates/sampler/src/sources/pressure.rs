//! /proc/pressure (Documentation/accounting/psi.rst): time in which tasks waited for a resource.

use std::path::Path;

use super::Source;
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

pub(super) fn sources(root: &Path) -> impl Iterator<Item = Box<dyn Source>> {
    let directory = root.join("proc/pressure");
    ["cpu", "io", "memory"]
        .into_iter()
        .filter_map(move |resource| {
            Pressure::open(&directory.join(resource), "psi", "host", resource)
                .map(|p| Box::new(p) as Box<dyn Source>)
        })
}

/// A pressure file of the host or of a control group.
pub(super) struct Pressure {
    file: Reread,
    source: &'static str,
    entity: String,
    resource: &'static str,
    some: Option<u64>,
    full: Option<u64>,
}

impl Pressure {
    pub(super) fn open(
        path: &Path,
        source: &'static str,
        entity: &str,
        resource: &'static str,
    ) -> Option<Self> {
        Some(Self {
            file: Reread::if_exists(path)?,
            source,
            entity: entity.to_owned(),
            resource,
            some: None,
            full: None,
        })
    }
}

impl Source for Pressure {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let (series, kind) = match line.get(..4) {
                Some(b"some") => (&mut self.some, "some"),
                Some(b"full") => (&mut self.full, "full"),
                _ => continue,
            };
            let total = words(line)
                .find_map(|w| w.strip_prefix(b"total="))
                .and_then(number);
            if let Some(microseconds) = total {
                let metric = || format!("{}_{kind}", self.resource);
                let series = *series.get_or_insert_with(|| {
                    sink.series(self.source, &self.entity, &metric(), "us", true)
                });
                sink.put(series, microseconds as f64);
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

    #[test]
    fn a_recorded_pressure_directory() {
        let mut memory = Memory::default();
        for mut source in sources(&fixture("host")) {
            source.sample(&mut memory).unwrap();
        }
        assert_eq!(memory.get("psi/host/io_some"), 14_933_394.0);
        assert_eq!(memory.get("psi/host/io_full"), 13_831_970.0);
        assert_eq!(memory.values.len(), 2); // the recorded host has io only
    }
}
