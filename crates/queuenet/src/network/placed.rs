//! Placement read back from a store: the real or planned location of the bytes of files.
//!
//! JSON: `{"FILE": [{"offset_bytes": 0, "length_bytes": 67108864, "hosts": ["data-0", "data-2"]}, …], …}`, with the
//! first replica's host first. For the files that it names it overrides tags and the store's own placement.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::platform::Network;
use super::workload::{Operation, Workload};
use super::SimulationError;

/// Largest number of extents of all files together.
const MOST_EXTENTS: usize = 1 << 24;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtentText {
    offset_bytes: u64,
    length_bytes: u64,
    hosts: Vec<String>,
}

/// Files in the order of the text. A duplicate name is an error.
struct FilesText(Vec<(String, Vec<ExtentText>)>);

impl<'de> Deserialize<'de> for FilesText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Files;
        impl<'de> Visitor<'de> for Files {
            type Value = FilesText;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object: file → list of {offset_bytes, length_bytes, hosts}")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FilesText, A::Error> {
                let (mut files, mut names) = (Vec::new(), std::collections::HashSet::new());
                while let Some((name, extents)) = map.next_entry::<String, Vec<ExtentText>>()? {
                    if !names.insert(name.clone()) {
                        let message =
                            format!("file \"{name}\" stands there twice; once is expected");
                        return Err(de::Error::custom(message));
                    }
                    files.push((name, extents));
                }
                Ok(FilesText(files))
            }
        }
        deserializer.deserialize_map(Files)
    }
}

/// Bytes `begin..end` of a file and their hosts: numbers of names, then of hosts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Extent {
    pub begin: u64,
    pub end: u64,
    pub hosts: Vec<u32>,
}

/// Extents of a file in order, with numbers of hosts.
pub(super) type Extents = Arc<[Extent]>;

/// Placement of files: extents in order, by number of the file; hosts by number of their name.
#[derive(Debug, Clone, Default)]
pub(super) struct Placement {
    files: Vec<(u32, Vec<Extent>)>,
    hosts: Vec<String>,
}

fn bad(message: String) -> SimulationError {
    SimulationError(format!("placement: {message}"))
}

impl Workload {
    /// Set the placement of existing files or of the tasks' output from JSON as described above.
    ///
    /// # Errors
    /// The text has another form, names a file that the workload does not have, has extents that overlap or omit bytes
    /// that the workload reads or writes, an extent without hosts or twice on one host, or a varying chunk size.
    pub fn place(&mut self, json: &str) -> Result<(), SimulationError> {
        let text: FilesText = serde_json::from_str(json).map_err(|e| bad(e.to_string()))?;
        let amount: usize = text.0.iter().map(|(_, extents)| extents.len()).sum();
        if amount > MOST_EXTENTS {
            return Err(bad(format!(
                "{amount} extents; at most {MOST_EXTENTS} are expected"
            )));
        }
        let numbers: HashMap<String, u32> = (0u32..)
            .zip(&self.files)
            .map(|(i, file)| (file.name.clone(), i))
            .collect();
        let mut placement = Placement::default();
        let mut hosts = HashMap::new();
        for (name, extents) in text.0 {
            let Some(file) = numbers.get(&name) else {
                return Err(bad(format!(
                    "file \"{name}\"; a file of the workload is expected"
                )));
            };
            let mut segments = Vec::with_capacity(extents.len());
            for text in extents {
                let numbered = |host: String| {
                    *hosts.entry(host).or_insert_with_key(|host| {
                        placement.hosts.push(host.clone());
                        placement.hosts.len() as u32 - 1
                    })
                };
                segments.push(extent(&name, text, numbered)?);
            }
            placement.files.push((*file, in_order(&name, segments)?));
        }
        self.check_cover(&placement)?;
        self.placement = placement;
        Ok(())
    }

    /// Check that extents cover all bytes that exist before the run, are read or written, and that chunk sizes are
    /// constant.
    fn check_cover(&self, placement: &Placement) -> Result<(), SimulationError> {
        let of: HashMap<u32, &[Extent]> = placement
            .files
            .iter()
            .map(|(file, extents)| (*file, extents.as_slice()))
            .collect();
        let covers = |file: u32, begin: u64, end: u64| {
            match of.get(&file) {
            Some(extents) => match first_gap(extents, begin, end) {
                Some(gap) => Err(bad(format!(
                    "file \"{}\": no host has byte {gap}; extents for all that the workload reads and writes of it, here \
                     bytes {begin} to {end}, are expected",
                    self.files[file as usize].name
                ))),
                None => Ok(()),
            },
            None => Ok(()),
        }
        };
        for (i, file) in (0u32..).zip(&self.files) {
            if file.preloaded {
                covers(i, 0, file.size)?;
            }
        }
        for operation in &self.operations[0] {
            match *operation {
                Operation::Read { file, offset, size }
                | Operation::Write { file, offset, size } => {
                    covers(file, offset, offset + size)?;
                }
                Operation::SetHints { file, hints } if of.contains_key(&file) => {
                    let (spec, tags) = (&self.files[file as usize], &self.hints[hints as usize]);
                    if tags.chunk_bytes.is_some() && tags.chunk_bytes != spec.hints.chunk_bytes {
                        return Err(bad(format!(
                            "file \"{}\", whose chunk_bytes a set_xattr changes; chunks of one size are expected of a file \
                             that is placed",
                            spec.name
                        )));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn extent(
    file: &str,
    text: ExtentText,
    mut numbered: impl FnMut(String) -> u32,
) -> Result<Extent, SimulationError> {
    let ExtentText {
        offset_bytes: begin,
        length_bytes: length,
        hosts,
    } = text;
    let place = format!("file \"{file}\", extent at byte {begin}");
    let end = begin.checked_add(length).filter(|end| *end < 1 << 62);
    let Some(end) = end.filter(|end| *end > begin) else {
        return Err(bad(format!(
            "{place}: length_bytes is {length}; at least 1, and less than 2^62 bytes in all, are expected"
        )));
    };
    let mut replicas: Vec<u32> = Vec::with_capacity(hosts.len());
    for host in hosts {
        let message = format!(
            "{place}: host \"{host}\" a second time; each replica on a host of its own is expected"
        );
        let number = numbered(host);
        if replicas.contains(&number) {
            return Err(bad(message));
        }
        replicas.push(number);
    }
    if replicas.is_empty() {
        return Err(bad(format!("{place}: no hosts; at least one is expected")));
    }
    Ok(Extent {
        begin,
        end,
        hosts: replicas,
    })
}

/// Sort extents and merge neighbours on the same hosts.
fn in_order(file: &str, mut extents: Vec<Extent>) -> Result<Vec<Extent>, SimulationError> {
    extents.sort_by_key(|extent| extent.begin);
    let mut merged: Vec<Extent> = Vec::with_capacity(extents.len());
    for next in extents {
        match merged.last_mut() {
            Some(last) if last.end > next.begin => {
                return Err(bad(format!(
                    "file \"{file}\": extents overlap at byte {}; each byte in one extent is expected",
                    next.begin
                )));
            }
            Some(last) if last.end == next.begin && last.hosts == next.hosts => last.end = next.end,
            _ => merged.push(next),
        }
    }
    Ok(merged)
}

/// The first byte of `begin..end` outside all extents.
fn first_gap(extents: &[Extent], begin: u64, end: u64) -> Option<u64> {
    let mut at = begin;
    for extent in &extents[extents.partition_point(|extent| extent.end <= begin)..] {
        if at >= end || extent.begin > at {
            break;
        }
        at = extent.end;
    }
    (at < end).then_some(at)
}

/// Extents of files with the network's host numbers, by number of the file.
///
/// # Errors
/// A host does not exist or has no storage, or a chunk has extents on different hosts.
pub(super) fn on_hosts(
    workload: &Workload,
    network: &Network,
    hosts: &HashMap<&str, u32>,
) -> Result<Vec<(u32, Extents)>, SimulationError> {
    let placement = &workload.placement;
    let mut numbers = Vec::with_capacity(placement.hosts.len());
    for name in &placement.hosts {
        match hosts.get(name.as_str()) {
            Some(host) if network.hosts[*host as usize].storage.is_some() => numbers.push(*host),
            Some(_) => {
                return Err(bad(format!(
                    "host \"{name}\"; a host with storage is expected"
                )))
            }
            None => {
                return Err(bad(format!(
                    "host \"{name}\"; a host of the platform is expected, such as \"{}\"",
                    network
                        .hosts
                        .iter()
                        .find(|host| host.storage.is_some())
                        .map_or("", |host| &host.name)
                )))
            }
        }
    }
    let mut placed = Vec::with_capacity(placement.files.len());
    for (file, extents) in &placement.files {
        let spec = &workload.files[*file as usize];
        let chunk = spec.hints.chunk_bytes.unwrap_or(network.store.chunk_bytes);
        for pair in extents.windows(2) {
            if pair[1].begin / chunk == (pair[0].end - 1) / chunk {
                return Err(bad(format!(
                    "file \"{}\": other hosts from byte {} on, inside a chunk of {chunk} bytes; extents of whole chunks \
                     are expected",
                    spec.name, pair[1].begin
                )));
            }
        }
        let extents: Vec<Extent> = extents
            .iter()
            .map(|extent| Extent {
                hosts: extent
                    .hosts
                    .iter()
                    .map(|host| numbers[*host as usize])
                    .collect(),
                ..*extent
            })
            .collect();
        placed.push((*file, extents.into()));
    }
    Ok(placed)
}
