//! A small file that is read repeatedly through one descriptor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

const FIRST_BYTES: usize = 16 * 1024;
/// The kernel serves such files record by record through a buffer of at least a page (seq_file.rst). If the first
/// read returns much less than that, the file is complete, and the read that would return 0 can be omitted.
const WHOLE_BYTES: usize = 2048;

/// An open file of /proc, /sys or a control group.
#[derive(Debug)]
pub struct Reread {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    reads: u64,
}

impl Reread {
    /// Open a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Ok(Self {
            file: File::open(path).map_err(Error::file(path))?,
            path: path.to_path_buf(),
            buffer: vec![0; FIRST_BYTES],
            reads: 0,
        })
    }

    /// Open a file if it exists and can be read.
    pub fn if_exists(path: impl AsRef<Path>) -> Option<Self> {
        let mut file = Self::open(path).ok()?;
        file.read().ok()?;
        Some(file)
    }

    /// Present contents. Reads to the end: a long file needs several reads.
    pub fn read(&mut self) -> Result<&[u8], Error> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(2 * filled, 0);
            }
            self.reads += 1;
            let got = self
                .file
                .read_at(&mut self.buffer[filled..], filled as u64)
                .map_err(Error::file(&self.path))?;
            let complete = filled == 0 && got <= WHOLE_BYTES;
            filled += got;
            if got == 0 || complete {
                return Ok(&self.buffer[..filled]);
            }
        }
    }

    /// System calls made so far.
    pub fn reads(&self) -> u64 {
        self.reads
    }
}

/// Words of a line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| b.is_ascii_whitespace() || *b == b':')
        .filter(|w| !w.is_empty())
}

/// Decimal number at the start of a word.
pub fn number(word: &[u8]) -> Option<u64> {
    let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    word[..digits].iter().try_fold(0_u64, |sum, b| {
        sum.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    })
}

/// Lines of a text that are not empty.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').filter(|l| !l.is_empty())
}
