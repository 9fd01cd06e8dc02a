//! /proc/diskstats (Documentation/admin-guide/iostats.rst).

use std::path::Path;

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

/// Counters after the device name, in the order of the file. A sector is 512 bytes on any device.
const FIELDS: [Metric; 11] = [
    Metric("reads", "1", true),
    Metric("reads_merged", "1", true),
    Metric("read_bytes", "B", true),
    Metric("read_time", "ms", true),
    Metric("writes", "1", true),
    Metric("writes_merged", "1", true),
    Metric("written_bytes", "B", true),
    Metric("write_time", "ms", true),
    Metric("in_flight", "1", false),
    Metric("io_time", "ms", true),
    Metric("queue_time", "ms", true),
];
const SECTOR_BYTES: f64 = 512.0;
const RAM_DISKS: u64 = 1;

pub(super) fn sources(root: &Path) -> Option<Box<dyn Source>> {
    let file = Reread::if_exists(root.join("proc/diskstats"))?;
    Some(Box::new(Diskstats {
        file,
        devices: Entities::new("disk", &FIELDS),
    }))
}

struct Diskstats {
    file: Reread,
    devices: Entities,
}

impl Source for Diskstats {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut fields = words(line);
            let major = fields.next().and_then(number);
            let Some(name) = fields.nth(1) else { continue };
            if major == Some(RAM_DISKS) {
                continue;
            }
            let mut values = [0.0; FIELDS.len()];
            for (at, (value, word)) in values.iter_mut().zip(fields).enumerate() {
                let sectors = FIELDS[at].1 == "B";
                *value =
                    number(word).unwrap_or(0) as f64 * if sectors { SECTOR_BYTES } else { 1.0 };
            }
            // a device that was never used, such as a loop device without a file, has no series before its first use
            if values.iter().all(|v| *v == 0.0) && !self.devices.knows(name) {
                continue;
            }
            let first = self.devices.first(name, sink);
            for (series, value) in (first..).zip(values) {
                sink.put(series, value);
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
    fn a_recorded_diskstats_file() {
        let mut memory = Memory::default();
        let mut source = sources(&fixture("host")).unwrap();
        source.sample(&mut memory).unwrap();
        assert_eq!(memory.get("disk/vda/reads"), 61_234.0);
        assert_eq!(memory.get("disk/vda/read_bytes"), 5_000_000.0 * 512.0);
        assert_eq!(memory.get("disk/vda/in_flight"), 2.0);
        assert_eq!(memory.get("disk/vda/io_time"), 40_500.0);
        assert!(!memory
            .values
            .keys()
            .any(|k| k.contains("loop") || k.contains("ram")));
    }
}
