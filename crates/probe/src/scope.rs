//! Scope of a trace: processes, control group and files. It is fixed when the programs are loaded.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::btf::types::Enum;
use libbpf_rs::btf::Btf;
use libbpf_rs::{MapCore, MapFlags};
use serde::Deserialize;
use serde_json::json;

use crate::mapped::Mapped;
use crate::ProbeError;

/// Words of the set of processes: one bit for each number below PID_MAX_LIMIT.
pub const MEMBER_WORDS: usize = 65_536;
/// Maximum number of paths and directories together.
pub const MOST_RULES: usize = 64;
/// Maximum number of endings of names.
pub const MOST_ENDINGS: usize = 16;
/// Maximum number of files by number.
pub const MOST_NUMBERS: usize = 1024;
const TAIL_BYTES: usize = 256;
const ENDING_BYTES: usize = 24;
const BY_NUMBER: u32 = 1;
const BY_PATH: u32 = 2;

/// A file by the kernel's device number (major << 20 | minor) and inode number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub struct Place {
    /// Device.
    pub device: u32,
    /// Inode.
    pub inode: u64,
}

/// A requested path: an existing directory, and the components below it.
#[derive(Clone, Debug, Deserialize)]
pub struct PathRule {
    /// The directory.
    pub anchor: Place,
    /// Components below it from the last to the first, each ended by a zero byte, in hexadecimal digits.
    #[serde(default)]
    pub tail: String,
    /// The file itself, if it exists.
    #[serde(default)]
    pub number: Option<Place>,
}

/// Scope of a trace. Criteria of different kinds combine by AND, those of one kind by OR. The default is the entire
/// control group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scope {
    /// True to trace process trees only. Arming sets their roots.
    pub by_process: bool,
    /// Controller of the v1 hierarchy that has the group (`memory`, `blkio`, …).
    pub controller: Option<String>,
    /// Processes that are never traced, at most two.
    pub observers: Vec<u32>,
    /// Files by number.
    pub numbers: Vec<Place>,
    /// Files by path.
    pub paths: Vec<PathRule>,
    /// Directories, including all files below.
    pub directories: Vec<PathRule>,
    /// Endings of file names, in hexadecimal digits.
    pub endings: Vec<String>,
    /// Direction: `read`, or `write` (includes the operations that make writes durable).
    pub only: Option<String>,
}

/// Constants of the programs that depend on the scope.
#[derive(Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Constants {
    pub by_process: u32,
    pub v1_controller: u32,
    pub observers: [u32; 2],
    pub number_rules: u32,
    pub path_rules: u32,
    pub directory_rules: u32,
    pub ending_rules: u32,
    pub rule_count: u32,
    pub only_direction: u32,
}

/// Maps of the programs that depend on the scope.
pub struct Maps<'a> {
    /// Directory → its rules, as bits.
    pub anchors: &'a dyn MapCore,
    /// Components that must follow.
    pub rules: &'a dyn MapCore,
    /// Files by number.
    pub numbers: &'a dyn MapCore,
    /// Endings of names.
    pub endings: &'a dyn MapCore,
}

impl Scope {
    /// Check counts and lengths, and look up the controller's number in the kernel's type information.
    pub fn constants(&self) -> Result<Constants, ProbeError> {
        let refuse = |message: String| Err(ProbeError::Request(message));
        let rules = self.paths.len() + self.directories.len();
        for (what, entries, most) in [
            ("paths and directories", rules, MOST_RULES),
            ("endings", self.endings.len(), MOST_ENDINGS),
            (
                "inodes",
                self.numbers.len() + self.paths.len(),
                MOST_NUMBERS,
            ),
            ("observers", self.observers.len(), 2),
        ] {
            if entries > most {
                return refuse(format!("{entries} {what} are too many: at most {most}"));
            }
        }
        let only_direction = match self.only.as_deref() {
            None => 0,
            Some("read") => 1,
            Some("write") => 2,
            Some(other) => return refuse(format!("only {other}: it is read or write")),
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let observer = |n: usize| self.observers.get(n).copied().unwrap_or(0);
        Ok(Constants {
            by_process: u32::from(self.by_process),
            v1_controller: match &self.controller {
                Some(name) => number_of_controller(name)?,
                None => u32::MAX,
            },
            observers: [observer(0), observer(1)],
            number_rules: count(self.numbers.len()),
            path_rules: count(self.paths.len()),
            directory_rules: count(self.directories.len()),
            ending_rules: count(self.endings.len()),
            rule_count: count(rules),
            only_direction,
        })
    }

    /// Write the rules into the maps of newly loaded programs.
    pub fn fill(&self, maps: &Maps<'_>) -> Result<(), ProbeError> {
        let mut beginning_at: HashMap<Place, u64> = HashMap::new();
        let rules = self.paths.iter().map(|w| (w, 1u32));
        let rules = rules.chain(self.directories.iter().map(|w| (w, 0u32)));
        for (index, (rule, whole)) in rules.enumerate() {
            *beginning_at.entry(rule.anchor).or_default() |= 1 << index;
            let tail = bytes_of(&rule.tail, TAIL_BYTES, "a path that is not there yet")?;
            let mut value = whole.to_ne_bytes().to_vec();
            value.extend((tail.len() as u32).to_ne_bytes());
            value.extend(with_mask(&tail, TAIL_BYTES));
            let key = (index as u32).to_ne_bytes();
            maps.rules.update(&key, &value, MapFlags::ANY)?;
        }
        for (place, bits) in beginning_at {
            let value = bits.to_ne_bytes();
            maps.anchors.update(&key_of(place), &value, MapFlags::ANY)?;
        }
        let mut numbers: HashMap<Place, u32> = HashMap::new();
        for place in &self.numbers {
            *numbers.entry(*place).or_default() |= BY_NUMBER;
        }
        for place in self.paths.iter().filter_map(|rule| rule.number) {
            *numbers.entry(place).or_default() |= BY_PATH;
        }
        for (place, by) in numbers {
            maps.numbers
                .update(&key_of(place), &by.to_ne_bytes(), MapFlags::ANY)?;
        }
        for (index, ending) in self.endings.iter().enumerate() {
            let text = bytes_of(ending, ENDING_BYTES, "an ending")?;
            let mut value = (text.len() as u32).to_ne_bytes().to_vec();
            value.extend([0; 4]);
            value.extend(with_mask(&text, ENDING_BYTES));
            let key = (index as u32).to_ne_bytes();
            maps.endings.update(&key, &value, MapFlags::ANY)?;
        }
        Ok(())
    }
}

/// Text padded to `most` bytes, and a mask of its own bytes.
fn with_mask(text: &[u8], most: usize) -> Vec<u8> {
    let mut both = text.to_vec();
    both.resize(most, 0);
    both.extend(std::iter::repeat_n(0xff, text.len()));
    both.resize(2 * most, 0);
    both
}

fn key_of(place: Place) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&place.inode.to_ne_bytes());
    key[8..12].copy_from_slice(&place.device.to_ne_bytes());
    key
}

fn bytes_of(hex: &str, most: usize, what: &str) -> Result<Vec<u8>, ProbeError> {
    let digits: Option<Vec<u8>> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    match digits {
        Some(bytes) if bytes.len() <= most => Ok(bytes),
        Some(bytes) => Err(ProbeError::Request(format!(
            "{what} of {} bytes is too long: at most {most}",
            bytes.len()
        ))),
        None => Err(ProbeError::Request(format!("{hex}: not hexadecimal"))),
    }
}

/// Number of a controller. It depends on the configuration of the kernel.
fn number_of_controller(name: &str) -> Result<u32, ProbeError> {
    // the kernel uses the names of cgroup v2
    let symbol = format!("{}_cgrp_id", if name == "blkio" { "io" } else { name });
    let types = Btf::from_vmlinux()?;
    let numbers: Option<Enum<'_>> = types.type_by_name("cgroup_subsys_id");
    let number = numbers.and_then(|numbers| {
        numbers
            .iter()
            .find(|member| member.name.is_some_and(|number| *number == *symbol))
            .and_then(|member| u32::try_from(member.value).ok())
    });
    number.ok_or_else(|| ProbeError::Request(format!("this kernel has no controller {name}")))
}

/// Return an error for a number that no process can have.
pub fn check_processes(processes: &[u32]) -> Result<(), ProbeError> {
    let limit = MEMBER_WORDS * 64;
    match processes.iter().find(|&&number| number as usize >= limit) {
        Some(number) => Err(ProbeError::Request(format!(
            "found the process {number}; expected a number below {limit}"
        ))),
        None => Ok(()),
    }
}

/// Set of traced processes.
pub struct Members(Mapped<u64>);

impl Members {
    /// Create it over the mapped words of the programs' set.
    pub fn new(bitmap: Mapped<u64>) -> Self {
        Self(bitmap)
    }

    fn word(&self, process: u32) -> (&AtomicU64, u64) {
        let at = self.0.at(process as usize / 64);
        // SAFETY: aligned, and in a mapping that outlives this reference.
        (unsafe { AtomicU64::from_ptr(at) }, 1 << (process % 64))
    }

    /// Remove all processes.
    pub fn clear(&self) {
        self.0.clear(MEMBER_WORDS);
    }

    /// Number of processes.
    pub fn count(&self) -> u32 {
        (0..MEMBER_WORDS)
            .map(|index| self.0.read(index).count_ones())
            .sum()
    }

    /// Add processes and all their descendants. The programs must be armed, because they add children that members
    /// fork meanwhile. The scan repeats until it finds no new process.
    pub fn add_trees(&self, roots: &[u32]) {
        let mut members: HashSet<u32> = HashSet::new();
        for &root in roots {
            members.insert(root);
            let (word, bit) = self.word(root);
            word.fetch_or(bit, Ordering::SeqCst);
        }
        loop {
            let children: Vec<u32> = parents()
                .filter(|(process, parent)| members.contains(parent) && !members.contains(process))
                .map(|(process, _)| process)
                .collect();
            if children.is_empty() {
                break;
            }
            for process in children {
                members.insert(process);
                let (word, bit) = self.word(process);
                word.fetch_or(bit, Ordering::SeqCst);
            }
        }
        // a process that ended before its bit was set would keep the bit: the trace would wait for its end, and a later
        // process with that number would be traced
        for process in members {
            if has_ended(process) {
                let (word, bit) = self.word(process);
                word.fetch_and(!bit, Ordering::SeqCst);
            }
        }
    }
}

/// True if a process has ended or is a zombie, so that no further thread of it will end.
fn has_ended(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // the name may contain any character, so search for the last parenthesis
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    })
}

/// Every process with its parent.
fn parents() -> impl Iterator<Item = (u32, u32)> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // the name may contain any character, so search for the last parenthesis
            let (_, rest) = stat.rsplit_once(") ")?;
            Some((process, rest.split(' ').nth(1)?.parse().ok()?))
        })
}

/// An announcement that is not about a file.
#[repr(C)]
#[derive(Clone, Copy)]
struct Notice {
    notice: u32,
    kind: u32,
    t_ns: u64,
    tid: u32,
    pid: u32,
    started_ns: u64,
    text: [u8; 64],
}

/// The JSON line of an announcement that is not about a file; None if it is.
pub fn notice(bytes: &[u8]) -> Option<String> {
    if bytes.len() < std::mem::size_of::<Notice>() || bytes[..4] != [0xff; 4] {
        return None;
    }
    // SAFETY: long enough, and plain numbers.
    let notice: Notice = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    let used = notice.text.iter().position(|&b| b == 0).unwrap_or(64);
    let hex: String = notice.text[..used]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (t_ns, tid, pid) = (notice.t_ns, notice.tid, notice.pid);
    let started_ns = notice.started_ns;
    Some(match notice.kind {
        1 => format!(
            "{}\n",
            json!({
                "tid": tid, "pid": pid, "first_ns": t_ns, "started_ns": started_ns, "program_hex": hex,
            })
        ),
        2 => format!(
            "{}\n",
            json!({"mark_hex": hex, "t_ns": t_ns, "tid": tid, "pid": pid})
        ),
        _ => String::new(),
    })
}

/// Depth of a control group in the unified hierarchy (0 for the root).
pub(crate) fn level_of(cgroup_id: u64) -> Result<u32, ProbeError> {
    use std::os::unix::fs::MetadataExt;
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(ProbeError::io("/proc/self/mountinfo"))?;
    let mut waiting: Vec<(std::path::PathBuf, u32)> = table
        .lines()
        .filter(|line| line.contains(" - cgroup2 "))
        .filter_map(|line| {
            line.split(' ')
                .nth(4)
                .map(|p| (p.replace("\\040", " ").into(), 0))
        })
        .collect();
    while let Some((directory, level)) = waiting.pop() {
        let Ok(facts) = std::fs::metadata(&directory) else {
            continue;
        };
        if facts.ino() == cgroup_id {
            return Ok(level);
        }
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push((entry.path(), level + 1));
            }
        }
    }
    Err(ProbeError::Request(format!(
        "no control group {cgroup_id} in the unified hierarchy"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excessive_scopes_are_refused_with_a_message() {
        let place = Place {
            device: 1,
            inode: 2,
        };
        let rule = PathRule {
            anchor: place,
            tail: String::new(),
            number: None,
        };
        let scope = Scope {
            directories: vec![rule; MOST_RULES + 1],
            ..Scope::default()
        };
        let message = scope.constants().unwrap_err().to_string();
        assert_eq!(message, "65 paths and directories are too many: at most 64");
        let only = Scope {
            only: Some("sync".into()),
            ..Scope::default()
        };
        assert!(only.constants().is_err());
        assert!(bytes_of("zz", 8, "x").is_err());
        assert!(bytes_of(&"61".repeat(9), 8, "x").is_err());
        assert_eq!(bytes_of("612f", 8, "x").unwrap(), b"a/");
    }

    #[test]
    fn a_number_that_no_process_can_have_is_refused() {
        assert!(check_processes(&[1, 4_194_303]).is_ok());
        let message = check_processes(&[1, 4_194_304]).unwrap_err().to_string();
        assert!(message.contains("found the process 4194304"), "{message}");
    }

    #[test]
    fn file_announcements_are_not_notices() {
        let mut bytes = vec![0u8; std::mem::size_of::<Notice>()];
        assert!(notice(&bytes).is_none());
        bytes[..4].fill(0xff);
        bytes[4] = 1;
        bytes[16] = 42;
        bytes[24] = 7;
        bytes[32..34].copy_from_slice(b"sh");
        let line = notice(&bytes).unwrap();
        assert!(line.contains("\"program_hex\":\"7368\"") && line.contains("\"tid\":42"));
        assert!(line.contains("\"started_ns\":7"));
    }

    #[test]
    fn zombies_count_as_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!has_ended(child.id()) && !has_ended(std::process::id()));
        child.kill().unwrap();
        while !has_ended(child.id()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(fs::exists(format!("/proc/{}", child.id())).unwrap());
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }

    #[test]
    fn every_process_has_a_parent() {
        let own = std::process::id();
        let parent_of: HashMap<u32, u32> = parents().collect();
        assert!(parent_of.contains_key(&own));
    }
}
