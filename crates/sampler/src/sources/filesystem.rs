//! Size and free space of file systems on devices of this host, by statvfs(3).
//!
//! The list is read once, from /proc/self/mounts. Of a device with several mount points the first counts.
//! Network file systems and those served by a program are excluded, because a query may block forever.

use std::collections::HashSet;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::path::Path;

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::file::lines;
use crate::spool::Sink;

/// `free` is the space available to all users, as in `df`. It excludes blocks reserved for root.
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

/// Mount points, one per device, with octal escapes decoded (fstab(5)).
fn places(text: &[u8]) -> Vec<CString> {
    let mut devices = HashSet::new();
    let mut mounts = Vec::new();
    for line in lines(text) {
        let mut fields = line.split(|b| *b == b' ');
        let (Some(device), Some(place)) = (fields.next(), fields.next()) else {
            continue;
        };
        if !device.starts_with(b"/dev/") || !devices.insert(device.to_vec()) || mounts.len() == MOST
        {
            continue;
        }
        if fields.next().is_some_and(|kind| kind.starts_with(b"fuse")) {
            continue;
        }
        if let Ok(place) = CString::new(unescaped(place)) {
            mounts.push(place);
        }
    }
    mounts
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
            let mut buffer = MaybeUninit::<libc::statvfs64>::zeroed();
            self.calls += 1;
            // SAFETY: the path ends with a zero byte, and `buffer` has the size of the structure
            if unsafe { libc::statvfs64(place.as_ptr(), buffer.as_mut_ptr()) } != 0 {
                continue; // unmounted in the meantime
            }
            // SAFETY: the call succeeded, and any bytes are valid numbers
            let stats = unsafe { buffer.assume_init() };
            let first = self.entities.first(place.as_bytes(), sink);
            sink.put(first, stats.f_blocks as f64 * stats.f_frsize as f64);
            sink.put(first + 1, stats.f_bavail as f64 * stats.f_frsize as f64);
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
    fn local_devices_are_listed_once() {
        let text = b"/dev/vda / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/vda /work ext4 rw 0 0\n\
            /dev/vdb /a\\040b xfs rw 0 0\nhost:/x /net nfs rw 0 0\n/dev/fuse /f fuse.d rw 0 0\n";
        let mounts = places(text);
        let named: Vec<_> = mounts.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(named, ["/", "/a b"]);
    }

    #[test]
    fn free_space_is_between_zero_and_total() {
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
        assert_eq!(memory.values.len(), 2); // nothing for the path that does not exist
        assert_eq!(source.reads(), 2);
    }
}
