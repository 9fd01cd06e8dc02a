//! Selection of processes: members of control groups, descendants of a process, and processes by name.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::kept::Stat;
use crate::config::StartRequest;
use crate::file::{lines, number};

/// Shortest time between two searches for members of groups, ns.
const GROUPS_NS: i64 = 100_000_000;
/// Shortest time between two scans of /proc and of nested groups, ns.
const SCAN_NS: i64 = 250_000_000;
/// Longest time until an unselected process is checked again, ns. It may have executed another program, or its
/// number may belong to a new process.
const LONGEST_AGAIN_NS: i64 = 32_000_000_000;
const MOST_GROUPS: usize = 256;

/// Process number, and the node of its group; an empty name means no node.
pub(super) type MatchedProcess = (u32, String);

struct Members {
    node: String,
    directory: PathBuf,
}

/// An unselected process that was checked.
struct Other {
    again_ns: i64,
    after_ns: i64,
}

/// Search for processes.
pub(super) struct Finder {
    proc: PathBuf,
    bases: Vec<(String, PathBuf)>,
    groups: Vec<Members>,
    tree: Option<u32>,
    /// Earliest start of a descendant, ticks since boot.
    began: u64,
    descendants: HashSet<u32>,
    patterns: Vec<String>,
    others: HashMap<u32, Other>,
    groups_at_ns: i64,
    scan_at_ns: i64,
    calls: u64,
}

impl Finder {
    /// `began` is the start of the recording, ticks since boot.
    pub(super) fn new(request: &StartRequest, began: u64) -> Self {
        let of_run = std::iter::once((String::new(), &request.cgroups));
        let of_nodes = request.nodes.iter().map(|(n, groups)| (n.clone(), groups));
        let bases: Vec<_> = of_run
            .chain(of_nodes)
            .filter(|_| request.processes)
            .filter_map(|(node, groups)| {
                // the kernel lists members faster in a v1 hierarchy; `net` is not a group
                let old = groups.iter().filter(|(name, _)| *name != "unified");
                let directory = old
                    .map(|(_, directory)| directory)
                    .chain(groups.get("unified"))
                    .find(|d| d.join("cgroup.procs").exists())?;
                Some((node, directory.clone()))
            })
            .collect();
        let tree = request
            .tree
            .filter(|_| request.processes && bases.is_empty());
        Self {
            proc: request.root.join("proc"),
            bases,
            groups: Vec::new(),
            tree,
            began,
            descendants: HashSet::new(),
            patterns: request.processes_named.clone(),
            others: HashMap::new(),
            groups_at_ns: i64::MIN,
            scan_at_ns: i64::MIN,
            calls: 0,
        }
    }

    /// Approximate number of system calls.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Processes at present; None before the next search is due.
    pub(super) fn look(&mut self, now_ns: i64) -> Option<Vec<MatchedProcess>> {
        let scan = now_ns >= self.scan_at_ns;
        if !scan && (now_ns < self.groups_at_ns || self.bases.is_empty()) {
            return None;
        }
        self.groups_at_ns = now_ns + GROUPS_NS;
        if scan {
            self.scan_at_ns = now_ns + SCAN_NS;
            self.walk();
        }
        let mut members = self.members();
        if scan && (self.tree.is_some() || !self.patterns.is_empty()) {
            self.scan(now_ns, &mut members);
        }
        Some(members)
    }

    fn walk(&mut self) {
        let mut groups = Vec::new();
        for (node, base) in &self.bases {
            beneath(node, base, &mut groups);
        }
        self.calls += groups.len() as u64;
        (self.groups).retain(|g| {
            groups
                .iter()
                .any(|(_, directory)| *directory == g.directory)
        });
        for (node, directory) in groups {
            if self.groups.iter().any(|g| g.directory == directory) {
                continue;
            }
            self.groups.push(Members { node, directory });
        }
    }

    fn members(&mut self) -> Vec<MatchedProcess> {
        let mut processes = Vec::new();
        for group in &self.groups {
            self.calls += 4;
            // reopened: an open file of version 1 may repeat an old list of members
            // (kernel/cgroup/cgroup-v1.c keeps the list for a second after its last use)
            let Ok(text) = fs::read(group.directory.join("cgroup.procs")) else {
                continue; // the group was removed
            };
            // 0 is a process outside this PID namespace
            let pids = lines(&text).filter_map(number).filter(|pid| *pid > 0);
            processes.extend(pids.map(|pid| (pid as u32, group.node.clone())));
        }
        processes
    }

    fn scan(&mut self, now_ns: i64, processes: &mut Vec<MatchedProcess>) {
        let Ok(directory) = fs::read_dir(&self.proc) else {
            return;
        };
        let mut others = std::mem::take(&mut self.others);
        let previous = std::mem::take(&mut self.descendants);
        let mut new: Vec<(u32, Stat)> = Vec::new();
        for entry in directory.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            if previous.contains(&pid) {
                self.descendants.insert(pid);
                continue;
            }
            let mut after_ns = SCAN_NS;
            if let Some(other) = others.remove(&pid) {
                if now_ns < other.again_ns {
                    self.others.insert(pid, other);
                    continue;
                }
                after_ns = (2 * other.after_ns).min(LONGEST_AGAIN_NS);
            }
            self.calls += 3;
            if let Some(stat) = Stat::of(&self.proc, pid) {
                let other = Other {
                    again_ns: now_ns + after_ns,
                    after_ns,
                };
                self.others.insert(pid, other);
                new.push((pid, stat));
            }
        }
        for (pid, stat) in &new {
            if self.patterns.iter().any(|p| fits(p, &stat.comm)) {
                self.descendants.insert(*pid);
            }
        }
        if let Some(root) = self.tree {
            let began = self.began;
            // children may precede their parents in the list
            loop {
                let more: Vec<u32> = new
                    .iter()
                    .filter(|(pid, stat)| !self.descendants.contains(pid) && stat.start >= began)
                    .filter(|(_, s)| s.parent == root || self.descendants.contains(&s.parent))
                    .map(|(pid, _)| *pid)
                    .collect();
                if more.is_empty() {
                    break;
                }
                self.descendants.extend(more);
            }
        }
        let own = &self.descendants;
        self.others.retain(|pid, _| !own.contains(pid));
        processes.extend(own.iter().map(|pid| (*pid, String::new())));
    }

    /// Remove an ended process, because its number may be reused.
    pub(super) fn forget(&mut self, pid: u32) {
        self.descendants.remove(&pid);
    }
}

/// Add a group and all nested groups to the list.
fn beneath(node: &str, base: &Path, groups: &mut Vec<(String, PathBuf)>) {
    let Ok(status) = fs::metadata(base) else {
        return;
    };
    if groups.len() == MOST_GROUPS {
        return;
    }
    groups.push((node.to_owned(), base.to_owned()));
    // a directory has two links and one more for each subdirectory
    if status.nlink() <= 2 {
        return;
    }
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            beneath(node, &entry.path(), groups);
        }
    }
}

/// True if a name matches a pattern with `*` and `?`.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, n) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::super::testing::{process, Place};
    use super::*;

    fn finder(place: &Place, request: serde_json::Value, began: u64) -> Finder {
        let mut request = request;
        request["spool"] = "unused".into();
        request["root"] = place.path().to_str().into();
        Finder::new(&serde_json::from_value(request).unwrap(), began)
    }

    fn pids(finder: &mut Finder, now_ns: i64) -> Vec<u32> {
        let mut pids: Vec<u32> = finder.look(now_ns).unwrap().iter().map(|f| f.0).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("fio", "fio"),
            ("f*o", "fixo"),
            ("*", ""),
            ("p?s*", "postgres"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("fio", "fi"),
            ("fio", "fios"),
            ("f?o", "fo"),
            ("*x", "y"),
            ("", "a"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn members_of_nested_groups_by_node() {
        let place = Place::new("groups");
        let inner = place.path().join("run/a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(place.path().join("node")).unwrap();
        for (group, pids) in [
            ("run", "5\n0\n"),
            ("run/a", ""),
            ("run/a/b", "7\n"),
            ("node", "9\n"),
        ] {
            fs::write(place.path().join(group).join("cgroup.procs"), pids).unwrap();
        }
        let request = serde_json::json!({
            "processes": true,
            "cgroups": {"cpuacct": "/nowhere", "unified": place.path().join("run")},
            "nodes": {"n1": {"memory": place.path().join("node")}},
        });
        let mut finder = finder(&place, request, 0);
        let mut members = finder.look(0).unwrap();
        members.sort();
        let of = |pid, node: &str| (pid, node.to_owned());
        assert_eq!(members, [of(5, ""), of(7, ""), of(9, "n1")]);
        assert!(finder.look(GROUPS_NS - 1).is_none());
        fs::remove_dir_all(place.path().join("run/a")).unwrap();
        assert_eq!(pids(&mut finder, SCAN_NS), [5, 9]);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let place = Place::new("tree");
        // 30 began earlier; 20 is a child of 40, which is later in the list; 50 is no descendant
        for (pid, parent, start) in [
            (10, 1, 5),
            (20, 40, 105),
            (30, 10, 99),
            (40, 10, 100),
            (50, 1, 200),
        ] {
            process(&place, pid, "x", parent, start);
        }
        let mut finder = finder(
            &place,
            serde_json::json!({"processes": true, "tree": 10}),
            100,
        );
        assert_eq!(pids(&mut finder, 0), [20, 40]);
        fs::remove_dir_all(place.path().join("proc/40")).unwrap();
        process(&place, 20, "x", 1, 105); // its parent has ended
        process(&place, 60, "x", 20, 300);
        assert_eq!(pids(&mut finder, SCAN_NS), [20, 60]);
    }

    #[test]
    fn renamed_processes_are_matched() {
        let place = Place::new("names");
        process(&place, 10, "sh", 1, 5);
        process(&place, 11, "fio", 1, 5);
        let mut finder = finder(
            &place,
            serde_json::json!({"processes_named": ["f?o", "mysql*"]}),
            0,
        );
        assert_eq!(pids(&mut finder, 0), [11]);
        process(&place, 10, "mysqld", 1, 5);
        assert_eq!(pids(&mut finder, SCAN_NS), [10, 11]);
    }
}
