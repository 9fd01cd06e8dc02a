//! /proc/net/dev of the sampler's network namespace.

use std::path::Path;

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::file::{lines, number, words, Reread};
use crate::spool::Sink;

/// Metrics, and the column of each after the interface's name.
const FIELDS: [Metric; 8] = [
    Metric("received_bytes", "B", true),
    Metric("received_packets", "1", true),
    Metric("receive_errors", "1", true),
    Metric("receive_drops", "1", true),
    Metric("sent_bytes", "B", true),
    Metric("sent_packets", "1", true),
    Metric("send_errors", "1", true),
    Metric("send_drops", "1", true),
];
const COLUMNS: [usize; FIELDS.len()] = [0, 1, 2, 3, 8, 9, 10, 11];

/// Key among the groups of a node; its value is the path of the node's interface table.
pub(super) const OF_NODE: &str = "net";

pub(super) fn sources(root: &Path) -> Option<Box<dyn Source>> {
    opened(&root.join("proc/net/dev"), Vec::new())
}

/// Interfaces of a virtual node, named `NODE INTERFACE`, from the table of its first process.
pub(super) fn of_node(node: &str, table: &Path) -> Option<Box<dyn Source>> {
    opened(table, format!("{node} ").into_bytes())
}

fn opened(table: &Path, above: Vec<u8>) -> Option<Box<dyn Source>> {
    Some(Box::new(Interfaces {
        above,
        file: Reread::if_exists(table)?,
        interfaces: Entities::new("network", &FIELDS),
    }))
}

struct Interfaces {
    above: Vec<u8>,
    file: Reread,
    interfaces: Entities,
}

impl Source for Interfaces {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for line in lines(self.file.read()?) {
            // the two heading lines have no colon; a name may contain one (an alias, eth0:1)
            let Some(colon) = line.iter().rposition(|b| *b == b':') else {
                continue;
            };
            let name = [&self.above, line[..colon].trim_ascii()].concat();
            let first = self.interfaces.first(&name, sink);
            let mut columns = [0; 16];
            for (column, word) in columns.iter_mut().zip(words(&line[colon + 1..])) {
                *column = number(word).unwrap_or(0);
            }
            for (series, column) in (first..).zip(COLUMNS) {
                sink.put(series, columns[column] as f64);
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
    fn a_recorded_dev_file() {
        let mut memory = Memory::default();
        let mut source = sources(&fixture("host")).unwrap();
        source.sample(&mut memory).unwrap();
        assert_eq!(memory.get("network/eth0/received_bytes"), 345_678_901.0);
        assert_eq!(memory.get("network/eth0/sent_bytes"), 12_345_678.0);
        assert_eq!(memory.get("network/eth0/send_drops"), 9.0);
        assert_eq!(memory.get("network/lo/received_packets"), 42.0);
        assert_eq!(memory.values.len(), 2 * FIELDS.len());
    }

    #[test]
    fn interfaces_of_a_node_are_named_by_node() {
        let mut memory = Memory::default();
        let table = fixture("host").join("proc/net/dev");
        let mut source = of_node("data-0", &table).unwrap();
        source.sample(&mut memory).unwrap();
        assert_eq!(memory.get("network/data-0 eth0/sent_bytes"), 12_345_678.0);
        assert!(of_node("data-0", Path::new("/no/such/table")).is_none());
    }
}
