//! Reader of fio's I/O log, version 2 or 3.
//!
//! The log has neither latencies nor results: requests count as completed in full, with latency 0. The only times in
//! version 2 are its `wait` actions.

use std::path::Path;

use crate::imported::{malformed, shown, Imported};
use crate::lines;
use crate::spool::{Record, Spool};
use crate::ReadError;

/// Operation numbers of the tracer.
const READ: u8 = 1;
const WRITE: u8 = 33;
const SYNC: u8 = 64;
const DATASYNC: u8 = 65;
/// Actions of requests that are read, and of those that are only counted.
const REQUESTS: [&str; 4] = ["read", "write", "sync", "datasync"];
const OTHERS: [&str; 3] = ["trim", "sync_file_range", "syncfs"];

/// Append the log's requests to the spool, as thread `tid`.
pub fn read(path: &Path, tid: u32, out: &mut Spool, to: &mut Imported) -> Result<(), ReadError> {
    let mut version = 0;
    let mut clock_us: u64 = 0;
    lines::for_each(path, |number, line| {
        if number == 1 {
            version = match line.trim() {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                _ => {
                    let expected = "`fio version 2 iolog` or `fio version 3 iolog`";
                    return Err(malformed(path, 1, shown(line), expected));
                }
            };
            return Ok(());
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.is_empty() {
            return Ok(());
        }
        let bad = |expected: &str| malformed(path, number, shown(line), expected);
        let fields = if version == 3 {
            let us: u64 = fields[0]
                .parse()
                .map_err(|_| bad("a line that begins with microseconds"))?;
            if us < clock_us {
                return Err(bad("a time not before the last one"));
            }
            clock_us = us;
            &fields[1..]
        } else {
            &fields[..]
        };
        let (file, action, numbers) = match fields {
            [file, action @ ("add" | "open" | "close")] => (file, *action, None),
            [file, action, offset, length]
                if REQUESTS.contains(action) || OTHERS.contains(action) || *action == "wait" =>
            {
                let number = |word: &str| word.parse::<u64>().map_err(|_| bad("numbers in bytes"));
                (file, *action, Some((number(offset)?, number(length)?)))
            }
            _ => return Err(bad("FILE ACTION, or FILE ACTION OFFSET LENGTH")),
        };
        let Some((offset, length)) = numbers else {
            return Ok(()); // add, open, close: the file is recorded with its first request
        };
        if action == "wait" {
            if version == 3 {
                return Err(bad("no `wait` in version 3"));
            }
            clock_us = clock_us
                .checked_add(offset)
                .ok_or_else(|| bad("times below 2^63 ns"))?;
            return Ok(());
        }
        to.seen += 1;
        if OTHERS.contains(&action) {
            to.filtered += 1;
            return Ok(());
        }
        let size = u32::try_from(length)
            .ok()
            .filter(|&n| i32::try_from(n).is_ok())
            .ok_or_else(|| bad("a request below 2 GiB"))?;
        let offset = i64::try_from(offset)
            .ok()
            .filter(|o| o.checked_add(i64::from(size)).is_some())
            .ok_or_else(|| bad("an offset below 2^63"))?;
        let file_id = to.file(file);
        to.reaches(file_id, offset + i64::from(size));
        let t_ns = clock_us
            .checked_mul(1000)
            .filter(|&t_ns| i64::try_from(t_ns).is_ok())
            .ok_or_else(|| bad("times below 2^63 ns"))?;
        to.thread(tid, tid, "fio", t_ns);
        to.kept += 1;
        out.push(&Record {
            t_ns,
            offset,
            latency_ns: 0,
            size,
            done: size as i32,
            file_id,
            tid,
            pid: tid,
            op: match action {
                "read" => READ,
                "write" => WRITE,
                "sync" => SYNC,
                _ => DATASYNC,
            },
            flags: 0,
        })
        .map_err(|e| crate::imported::unreadable(path, e))
    })?;
    if version == 0 {
        return Err(malformed(path, 1, "an empty file", "`fio version 3 iolog`"));
    }
    Ok(())
}
