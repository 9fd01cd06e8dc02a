//! Constants and map sizes of the BPF object, set before loading.

use crate::layout::Ledger;
use crate::mode::Mode;
use crate::scope::{self, MEMBER_WORDS};
use crate::skeleton::{types, OpenTraceSkel};
use crate::ProbeError;

/// Size of the ring for records beyond the maximum number of streams, in mode pattern.
pub(crate) const SINGLES_BYTES: usize = 8 << 20;
/// Maximum number of files in mode count. Each has one counter per CPU, up to [`MOST_LANES`].
pub(crate) const COUNTED_FILES: usize = 131_072;
const MOST_LANES: usize = 8;
/// Maximum number of files with their own numbers (`files` in `bpf/maps.h`). An entry uses memory only when in use.
const FILES: usize = 1 << 21;
/// Maximum number of non-sequential streams with a notebook of chains and blocks (4 KiB each).
pub(crate) const NOTEBOOKS: usize = 8_192;
/// With more thread numbers than this, task storage replaces the array of thread states ([`THREAD_BYTES`] each).
const MOST_TIDS: usize = 65_536;
/// Size of `struct thread_state` in `bpf/maps.h`.
const THREAD_BYTES: usize = 256;

/// Counters per file: one per CPU, up to [`MOST_LANES`].
pub(crate) fn lanes(cpus: usize) -> usize {
    cpus.next_power_of_two().min(MOST_LANES)
}

/// Constants of the programs, in the maps of a new object.
fn constants<'a>(
    rodata: &'a mut Option<&mut types::rodata>,
) -> Result<&'a mut types::rodata, ProbeError> {
    rodata
        .as_deref_mut()
        .ok_or_else(|| ProbeError::Request("the programs lack their constants".into()))
}

/// Set constants and sizes of a new object.
pub(crate) fn prepare(
    open: &mut OpenTraceSkel<'static>,
    mode: Mode,
    cpus: usize,
    slots: usize,
    stream_count: usize,
) -> Result<(), ProbeError> {
    let entries = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let constants = constants(&mut open.maps.rodata_data)?;
    constants.ring_mask = entries(slots - 1);
    constants.patterns_only = u32::from(mode == Mode::Pattern || mode == Mode::Count);
    constants.counts_only = u32::from(mode == Mode::Count);
    constants.lanes = entries(lanes(cpus));
    if mode == Mode::Count {
        let counters = 2 * COUNTED_FILES * lanes(cpus);
        open.maps.counters.set_max_entries(entries(counters))?;
    }
    if matches!(mode, Mode::Trace | Mode::Pattern) {
        open.maps.files.set_max_entries(entries(FILES))?;
        open.maps.operations.set_max_entries(entries(FILES))?;
    }
    constants.stream_count = entries(stream_count);
    let counting = mode == Mode::Pattern || stream_count > 1;
    let notebooks = if counting { NOTEBOOKS } else { 1 };
    constants.notebook_count = entries(notebooks);
    open.maps.notebooks.set_max_entries(entries(notebooks))?;
    constants.cpu_count = entries(cpus);
    let tids = std::fs::read_to_string("/proc/sys/kernel/pid_max")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .filter(|&most| most <= MOST_TIDS && mode != Mode::Empty)
        .unwrap_or(0);
    constants.tid_limit = entries(tids);
    let size = |n: usize, each: usize| entries(n * each);
    (open.maps.bss_ledgers).set_value_size(size(cpus + 1, std::mem::size_of::<Ledger>()))?;
    (open.maps.bss_threads).set_value_size(size(tids.max(1), THREAD_BYTES))?;
    open.maps.rings.set_max_entries(entries(cpus * slots))?;
    if mode == Mode::Pattern {
        let bytes = entries(SINGLES_BYTES);
        open.maps.overflow.set_max_entries(bytes)?;
    }
    open.maps.streams.set_max_entries(entries(stream_count))?;
    Ok(())
}

/// Enable or disable the choice of hot files, and size its maps.
pub(crate) fn set_hot(
    open: &mut OpenTraceSkel<'static>,
    hot: bool,
    length: usize,
) -> Result<(), ProbeError> {
    let constants = constants(&mut open.maps.rodata_data)?;
    constants.hot_files = hot;
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    open.maps.cold_files.set_max_entries(length)?;
    Ok(())
}

/// Set the scope of the trace.
pub(crate) fn set_scope(
    open: &mut OpenTraceSkel<'static>,
    decided: &scope::Constants,
) -> Result<(), ProbeError> {
    let constants = constants(&mut open.maps.rodata_data)?;
    constants.by_process = decided.by_process;
    constants.v1_controller = decided.v1_controller;
    constants.observers = decided.observers;
    constants.number_rules = decided.number_rules;
    constants.path_rules = decided.path_rules;
    constants.directory_rules = decided.directory_rules;
    constants.ending_rules = decided.ending_rules;
    constants.rule_count = decided.rule_count;
    constants.only_direction = decided.only_direction;
    let length = u32::try_from(MEMBER_WORDS).unwrap_or(u32::MAX);
    open.maps.members.set_max_entries(length)?;
    Ok(())
}
