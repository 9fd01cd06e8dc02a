//! Reader of the text that `darshan-dxt-parser` prints for a Darshan log with extended tracing.
//!
//! The segments of the POSIX module become events. Each rank is a process. If a program uses MPI-IO, its bytes appear a
//! second time under that module. Those lines are only counted. Their offset may be -1, which the first version of that
//! module prints for an unknown offset. Times are seconds from the start of the job with four decimals: requests less
//! than 0.1 ms apart stay in the order of the text. The first ones may be negative, since clocks of hosts differ; times
//! then count from the earliest.

use std::path::Path;

use crate::imported::{malformed, shown, Imported};
use crate::lines;
use crate::spool::{Record, Spool};
use crate::ReadError;

/// Operation numbers of the tracer for calls with explicit offsets.
const READ: u8 = 1;
const WRITE: u8 = 33;

/// Read the text and write its requests to the spool in order of time.
pub fn read(path: &Path, out: &mut Spool, to: &mut Imported) -> Result<(), ReadError> {
    let mut records: Vec<Record> = Vec::new();
    let mut file_id = 0;
    let mut supported = false;
    let mut earliest: i64 = 0;
    // segments announced by a header and not read yet: a truncated file ends with some
    let mut promised: i64 = 0;
    let mut header = (0, String::new());
    lines::for_each(path, |number, line| {
        let bad = |expected: &str| malformed(path, number, shown(line), expected);
        if let Some(comment) = line.strip_prefix('#') {
            let comment = comment.trim();
            if let Some(dxt) = comment.strip_prefix("DXT,") {
                supported = true;
                if let Some((_, name)) = dxt.split_once("file_name:") {
                    file_id = to.file(name.trim());
                }
                if dxt.contains("write_count:") {
                    if promised > 0 {
                        return Err(bad(&format!("{promised} more segments of {}", header.1)));
                    }
                    let counts: Option<Vec<i64>> = dxt
                        .split(',')
                        .map(|part| {
                            part.split_once(':')
                                .and_then(|(_, n)| n.trim().parse().ok())
                        })
                        .collect();
                    let counts = counts.ok_or_else(|| bad("write_count: N, read_count: N"))?;
                    promised = counts.iter().fold(0, |sum, &n| sum.saturating_add(n));
                    header = (
                        number,
                        shown(
                            &to.files
                                .get(file_id.max(1) as usize - 1)
                                .map_or(String::new(), |f| f.path.clone()),
                        ),
                    );
                }
            } else if comment.starts_with("darshan log version") || comment.starts_with("exe:") {
                supported = true;
                to.about.push(comment.to_owned());
            }
            return Ok(());
        }
        if line.trim().is_empty() {
            return Ok(());
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let expected = "MODULE RANK read|write SEGMENT OFFSET LENGTH START END";
        let [module, rank, direction, _segment, offset, length, start, end, ..] = fields[..] else {
            return Err(bad(expected));
        };
        if !supported || file_id == 0 {
            return Err(bad(
                "`# DXT, file_id: …, file_name: …` before the first segment",
            ));
        }
        to.seen += 1;
        promised -= 1;
        match module {
            "X_POSIX" => {}
            "X_MPIIO" => {
                to.filtered += 1;
                return Ok(());
            }
            _ => return Err(bad("the module X_POSIX or X_MPIIO")),
        }
        let rank: u32 = rank
            .parse()
            .map_err(|_| bad("a rank that is not negative"))?;
        let offset: i64 = offset.parse().map_err(|_| bad(expected))?;
        let length: i64 = length.parse().map_err(|_| bad(expected))?;
        let seconds = |word: &str| {
            word.parse::<f64>()
                .ok()
                .filter(|s| s.is_finite() && s.abs() < 1e9)
                .map(|s| (s * 1e9).round() as i64)
                .ok_or_else(|| bad(expected))
        };
        let (start, end) = (seconds(start)?, seconds(end)?);
        if end < start || offset < 0 || length < 0 {
            return Err(bad("times in order and sizes that are not negative"));
        }
        let op = match direction {
            "read" => READ,
            "write" => WRITE,
            _ => return Err(bad("read or write")),
        };
        let size = i32::try_from(length).map_err(|_| bad("a request below 2 GiB"))?;
        let reach = offset
            .checked_add(length)
            .ok_or_else(|| bad("an offset below 2^63"))?;
        to.reaches(file_id, reach);
        to.kept += 1;
        earliest = earliest.min(start);
        records.push(Record {
            t_ns: start as u64, // shifted by `earliest` below
            offset,
            latency_ns: (end - start) as u64,
            size: size as u32,
            done: size,
            file_id,
            // thread numbers of the tracer begin at 1: rank 0 is process 1
            tid: rank.saturating_add(1),
            pid: rank.saturating_add(1),
            op,
            flags: 0,
        });
        Ok(())
    })?;
    if !supported {
        let expected = "the output of darshan-dxt-parser (`# DXT, …`)";
        return Err(malformed(path, 1, "another text", expected));
    }
    if promised > 0 {
        return Err(malformed(
            path,
            header.0,
            format!(
                "the end of the file, {promised} segments of {} missing",
                header.1
            ),
            "as many segments as the header says",
        ));
    }
    if earliest < 0 {
        for record in &mut records {
            record.t_ns = record.t_ns.wrapping_add(earliest.unsigned_abs());
        }
        to.about.push(format!(
            "times begin {} s before the start of the job, from which the text counts",
            -(earliest as f64) / 1e9
        ));
    }
    records.sort_by_key(|record| record.t_ns);
    for record in &records {
        let name = format!("rank {}", record.tid - 1);
        to.thread(record.pid, record.tid, &name, record.t_ns);
        out.push(record)
            .map_err(|e| crate::imported::unreadable(path, e))?;
    }
    Ok(())
}
