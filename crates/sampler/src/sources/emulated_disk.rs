//! Statistics pages of emulated disks: little-endian 64-bit words protected by a sequence lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use penstock_daemon::clock::now_ns;

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::spool::Sink;

const MAGIC: &[u8; 8] = b"PKDISK01";
const WORD: usize = 8;
const SEQUENCE: usize = 1;
const PUBLISHED_NS: usize = 2;
const FIRST_COUNTER: usize = 3;
const TRIES: u32 = 100;

/// Counters in the order of the page.
const COUNTERS: [Metric; 20] = [
    Metric("reads", "1", true),
    Metric("writes", "1", true),
    Metric("flushes", "1", true),
    Metric("read_bytes", "B", true),
    Metric("written_bytes", "B", true),
    Metric("read_service", "ns", true),
    Metric("write_service", "ns", true),
    Metric("flush_service", "ns", true),
    Metric("read_time", "ns", true),
    Metric("write_time", "ns", true),
    Metric("flush_time", "ns", true),
    Metric("busy", "ns", true),
    Metric("in_flight", "1", false),
    Metric("queue_time", "ns", true),
    Metric("late_count", "1", true),
    Metric("lateness_total", "ns", true),
    Metric("lateness_max", "ns", false),
    Metric("asked_time", "ns", true),
    Metric("delivered_time", "ns", true),
    Metric("errors", "1", true),
];
const BUSY: usize = 11;
const IN_FLIGHT: usize = 12;
const QUEUE_TIME: usize = 13;
const PAGE_BYTES: usize = (FIRST_COUNTER + COUNTERS.len()) * WORD;

pub(super) fn sources(disks: &BTreeMap<String, PathBuf>) -> Vec<Box<dyn Source>> {
    disks
        .iter()
        .filter_map(|(disk, path)| {
            let page = File::open(path).ok()?;
            Some(Box::new(StatsPage {
                page,
                path: path.clone(),
                disk: disk.clone(),
                series: Entities::new("emulated_disk", &COUNTERS),
                reads: 0,
            }) as Box<dyn Source>)
        })
        .collect()
}

struct StatsPage {
    page: File,
    path: PathBuf,
    disk: String,
    series: Entities,
    reads: u64,
}

impl StatsPage {
    /// Consistent copy of the page; None if every attempt collided with a writer.
    fn settled(&mut self) -> Result<Option<[u8; PAGE_BYTES]>, Error> {
        let mut page = [0; PAGE_BYTES];
        let mut after = [0; WORD];
        for _ in 0..TRIES {
            self.reads += 2;
            self.page
                .read_exact_at(&mut page, 0)
                .map_err(Error::file(&self.path))?;
            self.page
                .read_exact_at(&mut after, (SEQUENCE * WORD) as u64)
                .map_err(Error::file(&self.path))?;
            let before = word(&page, SEQUENCE);
            if &page[..WORD] == MAGIC && before % 2 == 0 && before == u64::from_le_bytes(after) {
                return Ok(Some(page));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }
}

fn word(page: &[u8], at: usize) -> u64 {
    let mut bytes = [0; WORD];
    bytes.copy_from_slice(&page[at * WORD..(at + 1) * WORD]);
    u64::from_le_bytes(bytes)
}

impl Source for StatsPage {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        if let Some(page) = self.settled()? {
            let first = self.series.first(self.disk.as_bytes(), sink);
            // The page dates from the last arrival or completion; requests in flight are so since then.
            let in_flight = word(&page, FIRST_COUNTER + IN_FLIGHT);
            let since_ns = now_ns().saturating_sub(word(&page, PUBLISHED_NS));
            for at in 0..COUNTERS.len() {
                let more = match at {
                    BUSY => since_ns * in_flight.min(1),
                    QUEUE_TIME => since_ns * in_flight,
                    _ => 0,
                };
                sink.put(
                    first + at as u64,
                    (word(&page, FIRST_COUNTER + at) + more) as f64,
                );
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.reads
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::*;

    fn page(sequence: u64, published_ns: u64) -> Vec<u8> {
        let mut page = MAGIC.to_vec();
        page.extend(sequence.to_le_bytes());
        page.extend(published_ns.to_le_bytes());
        for counter in 0..COUNTERS.len() as u64 {
            page.extend((1000 + counter).to_le_bytes());
        }
        page.resize(4096, 0);
        page
    }

    fn sampled(sequence: u64, published_ns: u64) -> Memory {
        let path = std::env::temp_dir().join(format!(
            "penstock-page-{}-{sequence}-{published_ns}.stats",
            std::process::id()
        ));
        std::fs::write(&path, page(sequence, published_ns)).unwrap();
        let mut memory = Memory::default();
        let disks = [("data".to_owned(), path.clone())].into();
        for mut source in sources(&disks) {
            source.sample(&mut memory).unwrap();
        }
        std::fs::remove_file(path).unwrap();
        memory
    }

    #[test]
    fn counters_come_in_the_order_of_the_page() {
        let memory = sampled(4, u64::MAX);
        assert_eq!(memory.get("emulated_disk/data/reads"), 1000.0);
        assert_eq!(memory.get("emulated_disk/data/busy"), 1011.0);
        assert_eq!(memory.get("emulated_disk/data/errors"), 1019.0);
    }

    #[test]
    fn a_page_being_written_gives_no_sample() {
        assert!(sampled(5, u64::MAX).values.is_empty());
    }

    #[test]
    fn requests_in_flight_keep_the_disk_busy() {
        let began_ns = now_ns();
        let memory = sampled(4, began_ns - 1_000_000_000);
        let ended_ns = now_ns();
        let more = memory.get("emulated_disk/data/busy") - 1011.0;
        let most = 1e9 + (ended_ns - began_ns) as f64;
        assert!((1e9..=most).contains(&more), "{more}");
        let queued = memory.get("emulated_disk/data/queue_time") - 1013.0;
        assert!((1012e9..=1012.0 * most).contains(&queued), "{queued}");
    }
}
