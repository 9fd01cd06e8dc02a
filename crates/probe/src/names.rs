//! JSON lines about files: identities, names used by calls, and sums of rare operations.

use serde_json::json;

use crate::layout::{path_of, Introduction, NamePiece, OperationSum, OPERATIONS};

/// JSON line about a file, or about a name in a call.
pub(crate) fn introduction(bytes: &[u8]) -> String {
    const HEAD: usize = std::mem::size_of::<Introduction>();
    if bytes.len() < HEAD {
        return String::new();
    }
    if let Some(line) = crate::scope::notice(bytes) {
        return line;
    }
    if bytes[..4] == [0; 4] {
        return name_piece(bytes);
    }
    // SAFETY: long enough, and plain numbers.
    let head: Introduction = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    let used = (head.path_bytes as usize).min(bytes.len() - HEAD);
    let mut path = path_of(&bytes[HEAD..HEAD + used], head.complete != 0);
    if head.directory != 0 && !path.is_empty() && path.last() != Some(&b'/') {
        path.push(b'/'); // marks a directory, even if the table of files has no other sign of it
    }
    let line = json!({
        "file_id": head.file_id,
        "dev_major": head.device >> 20,
        "dev_minor": head.device & 0xf_ffff,
        "inode": head.inode,
        "generation": head.generation,
        "size_bytes": head.size_bytes,
        "t_ns": head.t_ns,
        "resident_pages": head.resident_pages,
        "file_system_magic": head.magic,
        "unlinked": head.unlinked != 0,
        "path_complete": head.complete != 0,
        "path_hex": hex(&path),
    });
    format!("{line}\n")
}

/// Name in a call (`text_hex`), or the directory that it is relative to (`directory_hex`).
fn name_piece(bytes: &[u8]) -> String {
    const HEAD: usize = std::mem::size_of::<NamePiece>();
    // SAFETY: as long as an introduction (a test compares the sizes); plain numbers.
    let head: NamePiece = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    let used = (head.bytes as usize).min(bytes.len() - HEAD);
    let body = &bytes[HEAD..HEAD + used];
    let (field, text) = if head.directory == 0 {
        ("text_hex", hex(body.strip_suffix(b"\0").unwrap_or(body)))
    } else if used == 0 {
        ("directory_hex", hex(b"/")) // the walk found no component: the directory is the root
    } else {
        ("directory_hex", hex(&path_of(body, head.complete != 0)))
    };
    let line = json!({
        "naming": operation_name(head.op),
        "which": head.which,
        "t_ns": head.t_ns,
        "tid": head.tid,
        "errno": (-head.result).max(0),
        "flags": head.flags,
        "of_file": head.link_of,
        field: text,
    });
    format!("{line}\n")
}

/// JSON line of the sums of one operation on one file; None if key or value has the wrong size.
pub(crate) fn operation_line(key: &[u8], sum: &[u8]) -> Option<String> {
    let number = |at: usize| Some(u32::from_le_bytes(*key.get(at..)?.first_chunk::<4>()?));
    if sum.len() < std::mem::size_of::<OperationSum>() {
        return None;
    }
    // SAFETY: long enough, and plain numbers.
    let sum: OperationSum = unsafe { std::ptr::read_unaligned(sum.as_ptr().cast()) };
    let line = json!({
        "operation": operation_name(number(4)?),
        "of_file": number(0)?,
        "calls": sum.calls,
        "errors": sum.errors,
        "time_ns": sum.time_ns,
        "longest_ns": sum.longest_ns,
    });
    Some(format!("{line}\n"))
}

fn operation_name(op: u32) -> &'static str {
    OPERATIONS
        .iter()
        .find(|(number, _)| u32::from(*number) == op)
        .map_or("unknown", |(_, name)| name)
}

/// True if a request in the map was already recorded and only its removal failed.
pub(crate) fn is_done(request: &[u8]) -> bool {
    request
        .last_chunk::<4>()
        .is_some_and(|tail| tail != &[0; 4])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
