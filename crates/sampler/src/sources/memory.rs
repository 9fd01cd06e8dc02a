//! /proc/meminfo (proc(5)).

use std::path::Path;

use super::Source;
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

const FIELDS: [(&[u8], &str); 14] = [
    (b"MemTotal", "total"),
    (b"MemFree", "free"),
    (b"MemAvailable", "available"),
    (b"Buffers", "buffers"),
    (b"Cached", "page_cache"),
    (b"Dirty", "dirty"),
    (b"Writeback", "writeback"),
    (b"AnonPages", "anonymous"),
    (b"Mapped", "mapped"),
    (b"Shmem", "shared"),
    (b"Slab", "slab"),
    (b"SwapTotal", "swap_total"),
    (b"SwapFree", "swap_free"),
    (b"WritebackTmp", "writeback_temporary"),
];

pub(super) fn sources(root: &Path) -> Option<Box<dyn Source>> {
    let file = Reread::if_exists(root.join("proc/meminfo"))?;
    Some(Box::new(Meminfo {
        file,
        series: [None; FIELDS.len()],
    }))
}

struct Meminfo {
    file: Reread,
    series: [Option<u64>; FIELDS.len()],
}

impl Source for Meminfo {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            let mut fields = words(line);
            let Some(name) = fields.next() else { continue };
            let Some(at) = FIELDS.iter().position(|(key, _)| *key == name) else {
                continue;
            };
            let series = *self.series[at]
                .get_or_insert_with(|| sink.series("memory", "host", FIELDS[at].1, "B", false));
            if let Some(kibibytes) = fields.next().and_then(number) {
                sink.put(series, kibibytes as f64 * 1024.0);
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
    fn a_recorded_meminfo_file() {
        let mut memory = Memory::default();
        let mut source = sources(&fixture("host")).unwrap();
        source.sample(&mut memory).unwrap();
        assert_eq!(memory.get("memory/host/total"), 24_684_096.0 * 1024.0);
        assert_eq!(memory.get("memory/host/dirty"), 312.0 * 1024.0);
        assert_eq!(memory.get("memory/host/page_cache"), 9_000_000.0 * 1024.0);
    }
}
