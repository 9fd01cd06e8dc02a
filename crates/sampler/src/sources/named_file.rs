//! Files that contain a number, with a name for each.
//!
//! A file is reopened for each sample, because a program may replace it. A file that is missing, is not regular or
//! holds no number leaves a gap, and `up` is 0.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Entities, Metric, Source};
use crate::error::Error;
use crate::number_text;
use crate::spool::Sink;

const SOURCE: &str = "file";
const METRICS: [Metric; 2] = [Metric("value", "1", false), Metric("up", "1", false)];
/// Length of the part at the start of the file in which the number is searched.
const MOST_BYTES: usize = 4096;
const MOST: usize = 64;

pub(super) fn sources(files: &BTreeMap<String, PathBuf>) -> Vec<Box<dyn Source>> {
    if files.is_empty() {
        return Vec::new();
    }
    let files = files.iter().take(MOST);
    vec![Box::new(Files {
        files: files.map(|(n, p)| (n.clone(), p.clone())).collect(),
        series: Entities::new(SOURCE, &METRICS),
        calls: 0,
    })]
}

struct Files {
    files: Vec<(String, PathBuf)>,
    series: Entities,
    calls: u64,
}

/// Number in a file. Does not block on a pipe without a writer.
fn number_in(path: &Path) -> Option<f64> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = [0; MOST_BYTES];
    let read = file.read_at(&mut text, 0).ok()?;
    number_text::first(&text[..read])
}

impl Source for Files {
    fn sample(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        for (name, path) in &self.files {
            self.calls += 4;
            let first = self.series.first(name.as_bytes(), sink);
            let number = number_in(path);
            if let Some(value) = number {
                sink.put(first, value);
            }
            sink.put(first + 1, f64::from(u8::from(number.is_some())));
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
    fn missing_files_leave_gaps() {
        let place = std::env::temp_dir().join(format!("penstock-file-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let pipe = std::ffi::CString::new(place.join("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a zero byte
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let names = ["depth", "pipe", "long"];
        let files = names.map(|n| (n.to_owned(), place.join(n))).into();
        std::fs::write(place.join("long"), format!("{:>5000}", 7)).unwrap();
        let mut source = sources(&files).remove(0);
        let mut memory = Memory::default();
        let mut sampled = || {
            memory.values.clear();
            source.sample(&mut memory).unwrap();
            memory.values.clone()
        };
        let before = sampled();
        for name in names {
            assert_eq!(before[&format!("file/{name}/up")], 0.0);
        }
        assert_eq!(before.len(), 3);
        std::fs::write(place.join("depth"), "depth 12\n").unwrap();
        let values = sampled();
        let of = |metric: &str| values[&format!("file/depth/{metric}")];
        assert_eq!((of("value"), of("up"), values.len()), (12.0, 1.0, 4));
        // replaced by a rename, as programs do to prevent partial reads
        std::fs::write(place.join("new"), "depth 13\n").unwrap();
        std::fs::rename(place.join("new"), place.join("depth")).unwrap();
        assert_eq!(sampled()["file/depth/value"], 13.0);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
