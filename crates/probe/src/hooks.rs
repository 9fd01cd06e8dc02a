//! Table of programs and hooks, and the choice among them by trial.
//!
//! A [`Feature`] is something that the tracer can observe. It has several [`Way`]s, the best one first. The first one
//! that the running kernel accepts is used. Every final report lists the way in use, the refused ones with the reasons,
//! and what the results lack ([`report`]).

use std::collections::BTreeMap;

use serde_json::{json, Value};

use crate::mode::Mode;

/// Kind of hook, in increasing order of cost for the traced program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Entry and exit of one kernel function; other functions have no overhead.
    Fentry,
    /// A tracepoint, with typed arguments.
    TpBtf,
    /// A tracepoint, with plain numbers as arguments.
    RawTp,
    /// A tracepoint of the tracing file system.
    Tracepoint,
}

impl Kind {
    /// Name in the option `--hooks`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::TpBtf => "tp_btf",
            Self::RawTp => "raw_tp",
            Self::Tracepoint => "tracepoint",
        }
    }

    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Fentry, Self::TpBtf, Self::RawTp, Self::Tracepoint];
}

/// One way to observe a feature: programs that are used together.
#[derive(Debug)]
pub struct Way {
    /// Kind of their hooks.
    pub kind: Kind,
    /// Programs of the object that every mode needs.
    pub programs: &'static [&'static str],
    /// Programs that only record the start of an operation.
    pub entries: &'static [&'static str],
    /// Gaps in the results of this way; empty if there are none.
    pub misses: &'static str,
}

/// A feature that the tracer can observe.
#[derive(Debug)]
pub struct Feature {
    /// Name in receipts and in `--require`.
    pub name: &'static str,
    /// True if tracing is impossible without it.
    pub required: bool,
    /// Modes in which it is loaded.
    pub modes: &'static [Mode],
    /// Gaps in the results without it.
    pub without: &'static str,
    /// Ways to observe it, the best one first.
    pub ways: &'static [Way],
}

const RECORDING: &[Mode] = &[Mode::Trace, Mode::Pattern];
const COUNTING: &[Mode] = &[Mode::Trace, Mode::Pattern, Mode::Count];

/// All features, in the order of attaching.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "calls",
        required: true,
        modes: COUNTING,
        without: "reads, writes, durability, metadata, copies inside the kernel",
        ways: &[
            Way {
                kind: Kind::Fentry,
                programs: &[
                    "out_read",
                    "out_write",
                    "out_pread64",
                    "out_pwrite64",
                    "out_readv",
                    "out_writev",
                    "out_preadv",
                    "out_pwritev",
                    "out_preadv2",
                    "out_pwritev2",
                    "out_open",
                    "out_close",
                    "out_msync",
                    "out_sendfile64",
                    "out_fsync",
                    "out_fdatasync",
                    "out_truncate",
                    "out_ftruncate",
                    "out_rename",
                    "out_creat",
                    "out_link",
                    "out_unlink",
                    "out_sync",
                    "out_fadvise64",
                    "out_openat",
                    "out_unlinkat",
                    "out_renameat",
                    "out_linkat",
                    "out_splice",
                    "out_sync_file_range",
                    "out_fallocate",
                    "out_syncfs",
                    "out_renameat2",
                    "out_copy_file_range",
                    "out_openat2",
                    "out_io_submit",
                    "out_io_getevents",
                    "out_io_pgetevents",
                ],
                entries: &[
                    "in_read",
                    "in_write",
                    "in_pread64",
                    "in_pwrite64",
                    "in_readv",
                    "in_writev",
                    "in_preadv",
                    "in_pwritev",
                    "in_preadv2",
                    "in_pwritev2",
                    "in_open",
                    "in_close",
                    "in_msync",
                    "in_sendfile64",
                    "in_fsync",
                    "in_fdatasync",
                    "in_truncate",
                    "in_ftruncate",
                    "in_rename",
                    "in_creat",
                    "in_link",
                    "in_unlink",
                    "in_sync",
                    "in_fadvise64",
                    "in_openat",
                    "in_unlinkat",
                    "in_renameat",
                    "in_linkat",
                    "in_splice",
                    "in_sync_file_range",
                    "in_fallocate",
                    "in_syncfs",
                    "in_renameat2",
                    "in_copy_file_range",
                    "in_openat2",
                    "in_io_submit",
                    "in_io_getevents",
                    "in_io_pgetevents",
                ],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &["leave"],
                entries: &["enter"],
                misses: "",
            },
            Way {
                kind: Kind::RawTp,
                programs: &["raw_leave"],
                entries: &["raw_enter"],
                misses: "",
            },
            Way {
                kind: Kind::Tracepoint,
                programs: &["classic_leave"],
                entries: &["classic_enter"],
                misses: "",
            },
        ],
    },
    Feature {
        name: "processes",
        required: false,
        modes: COUNTING,
        without: "scope by process (-p); names of programs after exec",
        ways: &[
            Way {
                kind: Kind::TpBtf,
                programs: &["forked", "executed", "ended"],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::RawTp,
                programs: &["raw_forked", "raw_executed", "raw_ended"],
                entries: &[],
                misses: "",
            },
        ],
    },
    Feature {
        name: "faults",
        required: false,
        modes: RECORDING,
        without: "reads and writes of mapped files",
        ways: &[
            Way {
                kind: Kind::Fentry,
                programs: &[
                    "find_direct_map",
                    "survey_mappings",
                    "fault_ends",
                    "fault_around_exit",
                    "fault_asked",
                    "fault_handled",
                    "fault_memory_ends",
                    "fault_memory_replaced",
                    "fault_of_kernel",
                    "fault_of_user",
                ],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &[
                    "find_direct_map",
                    "survey_mappings",
                    "fault_ends",
                    "fault_around",
                    "fault_in_page_cache",
                    "fault_process_ends",
                    "fault_program_ends",
                    "fault_of_kernel",
                    "fault_of_user",
                ],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &[
                    "find_direct_map",
                    "survey_mappings",
                    "fault_ends",
                    "fault_of_kernel",
                    "fault_of_user",
                ],
                entries: &[],
                misses: "pages of mapped files that the kernel maps around a fault",
            },
        ],
    },
    Feature {
        name: "aio_completion",
        required: false,
        modes: &[Mode::Trace],
        without: "the end of libaio requests: their latency runs until the program fetched them (flag reaped)",
        ways: &[
            Way {
                kind: Kind::Fentry,
                programs: &["aio_done"],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &["aio_direct_done"],
                entries: &[],
                misses: "the end of libaio requests that are not direct (flag reaped where it is an upper bound)",
            },
        ],
    },
    Feature {
        name: "io_uring",
        required: false,
        modes: COUNTING,
        without: "all of io_uring",
        ways: &[
            Way {
                kind: Kind::TpBtf,
                programs: &["uring_submit", "uring_complete"],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &["uring_submit", "uring_complete_before_6_11"],
                entries: &[],
                misses: "",
            },
            Way {
                kind: Kind::TpBtf,
                programs: &["uring_submit_before_6_4", "uring_complete_before_6_11"],
                entries: &[],
                misses: "",
            },
        ],
    },
    Feature {
        name: "empty",
        required: true,
        modes: &[Mode::Empty],
        without: "the base of measurements",
        ways: &[Way {
            kind: Kind::TpBtf,
            programs: &["empty_leave"],
            entries: &["empty_enter"],
            misses: "",
        }],
    },
];

/// Restrictions by the user or by a test.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The only kind of hook to use, for features that have it.
    pub forced: Option<Kind>,
    /// Kinds (`fentry`) or programs (`leave`) that are treated as if the kernel refused them.
    pub denied: Vec<String>,
    /// Required features.
    pub needed: Vec<String>,
}

impl Limits {
    /// Parse the options of the command line: `auto` or the name of a kind.
    pub fn new(hooks: &str, denied: Vec<String>) -> Result<Self, crate::ProbeError> {
        let forced = Kind::ALL.into_iter().find(|kind| kind.name() == hooks);
        if forced.is_none() && hooks != "auto" {
            let names = Kind::ALL.map(Kind::name).join(", ");
            return Err(crate::ProbeError::Request(format!(
                "no kind of hook {hooks}: it is auto or one of {names}"
            )));
        }
        Ok(Self {
            forced,
            denied,
            needed: Vec::new(),
        })
    }

    fn refuses(&self, feature: &Feature, way: &Way) -> Option<String> {
        let denied = |name: &str| self.denied.iter().any(|d| d == name);
        if denied(way.kind.name()) || way.programs.iter().chain(way.entries).any(|p| denied(p)) {
            return Some("EPERM (denied for a test)".into());
        }
        let other = self.forced.filter(|&kind| kind != way.kind)?;
        let has_it = feature.ways.iter().any(|way| way.kind == other);
        has_it.then(|| format!("only {} was asked for", other.name()))
    }
}

/// Refusals so far: the reasons, by feature and index of the way.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    refused: BTreeMap<(&'static str, usize), String>,
}

impl Findings {
    /// Add a refused way and the reason.
    pub fn refuse(&mut self, feature: &'static Feature, way: &Way, reason: String) {
        if let Some(number) = feature.ways.iter().position(|w| std::ptr::eq(w, way)) {
            self.refused.entry((feature.name, number)).or_insert(reason);
        }
    }

    fn reasons(&self, feature: &Feature) -> String {
        let lines: Vec<String> = feature
            .ways
            .iter()
            .enumerate()
            .filter_map(|(number, way)| {
                let reason = self.refused.get(&(feature.name, number))?;
                Some(format!("{}: {reason}", way.kind.name()))
            })
            .collect();
        lines.join("; ")
    }
}

/// A feature and the way in use; None if it is absent.
pub type Choice = (&'static Feature, Option<&'static Way>);

/// Names of all features, for `--require`.
pub fn names() -> Vec<&'static str> {
    let seen = FEATURES.iter().filter(|f| !f.modes.contains(&Mode::Empty));
    seen.map(|feature| feature.name).collect()
}

/// First way of each feature of a mode that has not been refused.
///
/// `there` reports whether the kernel has the hook of a program.
pub fn choose(
    mode: Mode,
    limits: &Limits,
    findings: &mut Findings,
    available: impl Fn(&str) -> Result<(), String>,
) -> Vec<Choice> {
    let mut chosen = Vec::new();
    for feature in FEATURES.iter().filter(|f| f.modes.contains(&mode)) {
        let mut taken = None;
        for (number, way) in feature.ways.iter().enumerate() {
            if findings.refused.contains_key(&(feature.name, number)) {
                continue;
            }
            let missing = || {
                way.programs
                    .iter()
                    .chain(way.entries)
                    .find_map(|p| available(p).err())
            };
            match limits.refuses(feature, way).or_else(missing) {
                None => {
                    taken = Some(way);
                    break;
                }
                Some(reason) => {
                    findings.refused.insert((feature.name, number), reason);
                }
            }
        }
        chosen.push((feature, taken));
    }
    chosen
}

/// Report for each feature: state (full, degraded or absent), hook, reason of refusals, and gaps in the results.
pub fn report(chosen: &[Choice], findings: &Findings) -> Value {
    let rows = chosen.iter().map(|(feature, way)| {
        let (state, hook, missing) = match way {
            None => ("absent", "", feature.without),
            Some(way) if way.misses.is_empty() => ("full", way.kind.name(), ""),
            Some(way) => ("degraded", way.kind.name(), way.misses),
        };
        let row = json!({
            "state": state, "hook": hook, "reason": findings.reasons(feature), "missing": missing,
        });
        (feature.name.to_owned(), row)
    });
    Value::Object(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(choice: &[Choice]) -> Option<Kind> {
        let (_, way) = choice.iter().find(|(f, _)| f.name == "calls")?;
        way.map(|way| way.kind)
    }

    fn chosen(
        limits: &Limits,
        available: impl Fn(&str) -> Result<(), String>,
    ) -> (Option<Kind>, Value) {
        let mut findings = Findings::default();
        let choice = choose(Mode::Trace, limits, &mut findings, available);
        (calls(&choice), report(&choice, &findings)["calls"].clone())
    }

    #[test]
    fn each_denied_hook_falls_back_to_the_next_kind() {
        let mut limits = Limits::default();
        for kind in Kind::ALL {
            let (taken, row) = chosen(&limits, |_| Ok(()));
            assert_eq!(taken, Some(kind));
            assert_eq!(row["state"], "full");
            assert_eq!(
                row["reason"].as_str().unwrap().matches("EPERM").count(),
                limits.denied.len()
            );
            limits.denied.push(kind.name().into());
        }
        let (taken, row) = chosen(&limits, |_| Ok(()));
        assert_eq!(taken, None);
        assert_eq!(row["state"], "absent");
        assert!(row["missing"].as_str().unwrap().contains("writes"));
    }

    #[test]
    fn missing_functions_are_named() {
        let lacks = |program: &str| match program {
            "out_preadv2" => Err("ENOENT (no __x64_sys_preadv2)".to_owned()),
            _ => Ok(()),
        };
        let (taken, row) = chosen(&Limits::default(), lacks);
        assert_eq!(taken, Some(Kind::TpBtf));
        assert!(row["reason"]
            .as_str()
            .unwrap()
            .contains("__x64_sys_preadv2"));
    }

    #[test]
    fn forced_kind_excludes_others() {
        let limits = Limits::new("raw_tp", Vec::new()).unwrap();
        assert_eq!(chosen(&limits, |_| Ok(())).0, Some(Kind::RawTp));
        assert!(Limits::new("kprobe", Vec::new()).is_err());
    }
}
