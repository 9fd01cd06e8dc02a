//! Reader of text files line by line, with any bytes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::imported::{malformed, shown, unreadable};
use crate::ReadError;

/// Maximum length of a line in bytes. A longer line means that the file is not a trace.
const LONGEST: usize = 1 << 20;

/// Call `each` with every line (number from 1, without its line end). Bytes that are not UTF-8 are replaced.
///
/// A last line without a line end is an error, even if `each` accepts it: its last number may be truncated.
pub fn for_each(
    path: &Path,
    mut each: impl FnMut(u64, &str) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let read = std::io::Read::take(&mut reader, LONGEST as u64)
            .read_until(b'\n', &mut line)
            .map_err(|e| unreadable(path, e))?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        if read == LONGEST {
            let actual = "a line of more than 1 MiB";
            return Err(malformed(path, number, actual, "text"));
        }
        let ended = line.last() == Some(&b'\n');
        while matches!(line.last(), Some(b'\n' | b'\r')) {
            line.pop();
        }
        let text = String::from_utf8_lossy(&line);
        each(number, &text)?;
        if !ended && !text.trim().is_empty() {
            let expected = "an end of the line (a truncated file?)";
            return Err(malformed(path, number, shown(&text), expected));
        }
    }
}
