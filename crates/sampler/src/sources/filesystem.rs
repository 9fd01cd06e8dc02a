//! File systems on devices of this host, by statvfs(3): how large they are and how much is free.
//!
//! Which ones is read once, from /proc/self/mounts; of one that is mounted at several places the first counts.
//! What a server elsewhere or a program serves is left out: asking for it may take for ever.

use std::collections::HashSet;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::path::Path;

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::file::lines;
use crate::spool::Sink;

/// Free: to all, as `df` says it; what is kept for root is not free.
const FIELDS: [Metric; 2] = [Metric("size", "B", false), Metric("free", "B", false)];
const MOST: usize = 200;

pub(super) fn sources(root: &Path) -> Option<Box<dyn Source>> {
    let text = std::fs::read(root.join("proc/self/mounts")).ok()?;
    let places = places(&text);
    if places.is_empty() {
        return None;
    }
    Some(Box::new(FileSystems {
        places,
        entities: Entities::new("filesystem", &FIELDS),
        calls: 0,
    }))
}

/// Mount points, one of each device; octal escapes undone (fstab(5)).
fn places(text: &[u8]) -> Vec<CString> {
    let mut devices = HashSet::new();
    let mut found = Vec::new();
    for line in lines(text) {
        let mut fields = line.split(|b| *b == b' ');
        let (Some(device), Some(place)) = (fields.next(), fields.next()) else {
            continue;
        };
        if !device.starts_with(b"/dev/") || !devices.insert(device.to_vec()) || found.len() == MOST
        {
            continue;
        }
        if fields.next().is_some_and(|kind| kind.starts_with(b"fuse")) {
            continue;
        }
        if let Ok(place) = CString::new(unescaped(place)) {
            found.push(place);
        }
    }
    found
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            plain.push(byte);
            rest = &after[3..];
        } else {
            plain.push(*first);
            rest = after;
        }
    }
    plain
}

struct FileSystems {
    places: Vec<CString>,
    entities: Entities,
    calls: u64,
}

impl Source for FileSystems {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for place in &self.places {
            let mut told = MaybeUninit::<libc::statvfs64>::zeroed();
            self.calls += 1;
            // SAFETY: the path ends with a zero byte, and `told` is as large as the call writes
            if unsafe { libc::statvfs64(place.as_ptr(), told.as_mut_ptr()) } != 0 {
                continue; // unmounted since
            }
            // SAFETY: the call succeeded, and any bytes are numbers
            let told = unsafe { told.assume_init() };
            let first = self.entities.first(place.as_bytes(), sink);
            sink.put(first, told.f_blocks as f64 * told.f_frsize as f64);
            sink.put(first + 1, told.f_bavail as f64 * told.f_frsize as f64);
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        self.calls
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::*;

    #[test]
    fn one_place_of_each_device_that_is_local() {
        let text = b"/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/vda /work ext4 rw 0 0\n\
            /dev/vdb /a\\040b xfs rw 0 0\nhost:/x /net nfs rw 0 0\n/dev/fuse /f fuse.d rw 0 0\n";
        let found = places(text);
        let named: Vec<_> = found.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(named, ["/", "/a b"]);
    }

    #[test]
    fn what_is_free_is_less_than_all_and_more_than_nothing() {
        let mut memory = Memory::default();
        let mut source = FileSystems {
            places: vec![c"/".into(), c"/no/such/place".into()],
            entities: Entities::new("filesystem", &FIELDS),
            calls: 0,
        };
        source.sample(&mut memory).unwrap();
        let (size, free) = (
            memory.get("filesystem///size"),
            memory.get("filesystem///free"),
        );
        assert!(0.0 < free && free < size);
        assert_eq!(memory.values.len(), 2); // nothing of the place that is not there
        assert_eq!(source.reads(), 2);
    }
}
