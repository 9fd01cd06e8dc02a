//! Software events of page faults, which mark the end of a fault, and access to the kernel's page tables.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::{Link, PerfEventOpts, ProgramInput, ProgramMut};

use crate::skeleton::TraceSkel;
use crate::ProbeError;

const TYPE_SOFTWARE: u32 = 1;
const FAULTS_MINOR: u64 = 5;
const FAULTS_MAJOR: u64 = 6;

/// First 64 bytes of the kernel's `perf_event_attr`, the size of its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// Attach a program to the end of every page fault of the machine. Its cookie is 1 for major faults.
pub(crate) fn attach(program: &ProgramMut<'_>) -> Result<Vec<Link>, ProbeError> {
    let mut links = Vec::new();
    for cpu in online()? {
        for (cookie, faults) in [(0, FAULTS_MINOR), (1, FAULTS_MAJOR)] {
            let event =
                open(faults, cpu).map_err(ProbeError::io("the kernel's count of page faults"))?;
            let options = PerfEventOpts {
                cookie,
                ..PerfEventOpts::default()
            };
            links.push(program.attach_perf_event_with_opts(event.into_raw_fd(), options)?);
        }
    }
    Ok(links)
}

/// JSON line of the pages of a mapped file that a process had at the start of tracing (`before`) or at its end.
/// `present` has one bit per page.
pub(crate) fn presence(bytes: &[u8]) -> String {
    let Some((head, bits)) = bytes.split_at_checked(24) else {
        return String::new();
    };
    let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let first = i64::from_le_bytes(head[8..16].try_into().unwrap_or_default());
    let hex: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = serde_json::json!({
        "mapped": short(4), "pid": short(0), "first_page": first, "present": hex,
        "before": short(16) != 0,
    });
    format!("{line}\n")
}

/// A buffer of one page, page-aligned, so that its words are at the start of a page.
#[repr(C, align(4096))]
struct Page([u64; 512]);

/// Find the kernel's mapping of physical memory, by means of a page with unique contents.
///
/// If the search fails (`direct_map` stays 0), huge pages and pages mapped around a fault are not observed.
pub(crate) fn find_direct_map(skeleton: &mut TraceSkel<'static>) -> Result<(), ProbeError> {
    let mut page = Box::new(Page([0; 512]));
    for (number, word) in page.0.iter_mut().enumerate() {
        *word = RandomState::new().hash_one(number);
    }
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let five_levels = flags.split_whitespace().any(|flag| flag == "la57");
    let bss = skeleton
        .maps
        .bss_data
        .as_deref_mut()
        .ok_or_else(|| ProbeError::Request("the programs lack their variables".into()))?;
    bss.five_levels = u32::from(five_levels);
    bss.known_address = std::ptr::from_ref(page.as_ref()) as u64;
    bss.known_words = [page.0[0], page.0[1]];
    skeleton
        .progs
        .find_direct_map
        .test_run(ProgramInput::default())
        .map_err(ProbeError::Load)?;
    drop(page);
    Ok(())
}

fn open(config: u64, cpu: i32) -> std::io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        size: std::mem::size_of::<Attributes>() as u32,
        config,
        sample_period: 1,
        ..Attributes::default()
    };
    // SAFETY: the structure has the size that it names; every process (-1) on this CPU, no group.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            -1,
            cpu,
            -1,
            CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, returned by the kernel.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Numbers of the CPUs that are running, from a list as `0-3,6`.
fn online() -> Result<Vec<i32>, ProbeError> {
    const LIST: &str = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(LIST).map_err(ProbeError::io(LIST))?;
    Ok(numbers(text.trim()))
}

fn numbers(list: &str) -> Vec<i32> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(numbers("0"), [0]);
        assert_eq!(numbers("0-3,6,8-9"), [0, 1, 2, 3, 6, 8, 9]);
        assert_eq!(numbers(""), [0_i32; 0]);
    }
}
