//! A file of complete records that stays valid if a write fails.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::ProbeError;

/// Writes records until a write fails; from then on it counts them only.
pub(crate) struct Sink {
    file: File,
    name: String,
    bytes: u64,
    failure: Option<String>,
    dropped: u64,
}

impl Sink {
    /// A new, empty file.
    pub fn create(path: &Path) -> Result<Self, ProbeError> {
        let name = path.display().to_string();
        Ok(Self {
            file: File::create(path).map_err(ProbeError::io(name.clone()))?,
            name,
            bytes: 0,
            failure: None,
            dropped: 0,
        })
    }

    /// Append the records of this number of operations: all of them or none.
    pub fn put(&mut self, records: &[u8], operations: u64) {
        if self.failure.is_none() {
            match self.file.write_all(records) {
                Ok(()) => {
                    self.bytes += records.len() as u64;
                    return;
                }
                Err(error) => {
                    self.failure = Some(format!("{}: {error}", self.name));
                    // a part may have been written: truncate to the last complete batch
                    let _ = self.file.set_len(self.bytes);
                }
            }
        }
        self.dropped += operations;
    }

    /// Operations that were not written.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Error of the failed write.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::Sink;
    use std::path::Path;

    #[test]
    fn writes_refused_by_a_full_disk_are_counted() {
        let mut sink = Sink::create(Path::new("/dev/full")).unwrap();
        sink.put(b"", 0);
        assert!(sink.failure().is_none());
        sink.put(b"record", 3);
        sink.put(b"record", 4);
        assert_eq!(sink.dropped(), 7);
        assert!(sink.failure().unwrap().starts_with("/dev/full: "));
    }

    #[test]
    fn written_records_are_complete() {
        let path = std::env::temp_dir().join(format!("penstock-sink-{}", std::process::id()));
        let mut sink = Sink::create(&path).unwrap();
        sink.put(b"one", 1);
        sink.put(b"two", 1);
        assert_eq!((sink.dropped(), sink.failure()), (0, None));
        assert_eq!(std::fs::read(&path).unwrap(), b"onetwo");
        std::fs::remove_file(path).unwrap();
    }
}
