//! After any writes, resizes and flushes, a power cut restores each file to its last flush.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_disk::unsynced::{CutMode, Key, Unsynced, LIMIT_BYTES};
use proptest::prelude::*;

const BASE: u64 = 1 << 40;
const FILES: usize = 3;
/// Several blocks and a part of one.
const MOST_BYTES: u64 = 5 * 4096 + 100;

#[derive(Debug, Clone)]
enum Step {
    Write {
        file: usize,
        offset: u64,
        length: usize,
        byte: u8,
    },
    Resize {
        file: usize,
        size: u64,
    },
    Flush {
        file: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..FILES, 0..MOST_BYTES, 1..9000_usize, any::<u8>()).prop_map(
        |(file, offset, length, byte)| Step::Write {
            file,
            offset,
            length,
            byte,
        },
    );
    let resize = (0..FILES, 0..MOST_BYTES).prop_map(|(file, size)| Step::Resize { file, size });
    let flush = (0..FILES).prop_map(|file| Step::Flush { file });
    prop::collection::vec(prop_oneof![4 => write, 2 => resize, 1 => flush], 0..24)
}

struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-unsynced-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key_of(file: &File) -> Key {
    let meta = file.metadata().unwrap();
    (meta.dev(), meta.ino())
}

/// Run the steps. Return the content of each file at its last flush, and its current content.
fn play(place: &Place, steps: &[Step], unsynced: &mut Unsynced) -> Vec<(Vec<u8>, Vec<u8>)> {
    let paths: Vec<PathBuf> = (0..FILES).map(|n| place.0.join(n.to_string())).collect();
    let mut durable = Vec::new();
    for (path, size) in paths.iter().zip([0, 700, 3 * 4096]) {
        fs::write(path, vec![b'.'; size]).unwrap();
        durable.push(fs::read(path).unwrap());
    }
    let open = |path: &PathBuf| File::options().read(true).write(true).open(path).unwrap();
    let files: Vec<File> = paths.iter().map(open).collect();
    for step in steps {
        match *step {
            Step::Write {
                file,
                offset,
                length,
                byte,
            } => {
                let (f, key) = (&files[file], key_of(&files[file]));
                unsynced
                    .before_write(f.as_raw_fd(), key, BASE, offset, length as u64)
                    .unwrap();
                f.write_all_at(&vec![byte; length], offset).unwrap();
            }
            Step::Resize { file, size } => {
                let (f, key) = (&files[file], key_of(&files[file]));
                unsynced
                    .before_resize(f.as_raw_fd(), key, BASE, size)
                    .unwrap();
                f.set_len(size).unwrap();
            }
            Step::Flush { file } => {
                unsynced.synced(Some(key_of(&files[file])));
                durable[file] = fs::read(&paths[file]).unwrap();
            }
        }
    }
    let now = paths.iter().map(|path| fs::read(path).unwrap());
    durable.into_iter().zip(now).collect()
}

fn cut(place: &Place, unsynced: &mut Unsynced, mode: CutMode, seed: u64) -> Vec<Vec<u8>> {
    let root = File::open(&place.0).unwrap();
    let cut = unsynced.lose(root.as_raw_fd(), mode, seed);
    assert_eq!(cut.failed, Vec::<String>::new());
    (0..FILES)
        .map(|n| fs::read(place.0.join(n.to_string())).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn lost_cut_leaves_only_flushed_data(steps in steps()) {
        let place = Place::new();
        let mut unsynced = Unsynced::new(LIMIT_BYTES);
        let files = play(&place, &steps, &mut unsynced);
        let contents = cut(&place, &mut unsynced, CutMode::Lost, 0);
        for ((durable, _), contents) in files.iter().zip(&contents) {
            prop_assert!(durable == contents);
        }
        // nothing remains to be lost
        prop_assert_eq!(unsynced.stored_and_dropped_bytes(), (0, 0));
        prop_assert!(cut(&place, &mut unsynced, CutMode::Lost, 0) == contents);
    }

    #[test]
    fn torn_cut_leaves_each_byte_old_new_or_zero(steps in steps(), seed in any::<u64>()) {
        let place = Place::new();
        let mut unsynced = Unsynced::new(LIMIT_BYTES);
        let files = play(&place, &steps, &mut unsynced);
        let contents = cut(&place, &mut unsynced, CutMode::Torn, seed);
        for ((old, new), contents) in files.iter().zip(&contents) {
            prop_assert!(contents.len() <= old.len().max(new.len()));
            for (at, byte) in contents.iter().enumerate() {
                let might_be = [old.get(at), new.get(at), Some(&0)];
                prop_assert!(might_be.contains(&Some(byte)), "byte {at} is {byte}");
            }
        }
    }
}
