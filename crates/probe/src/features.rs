//! Kinds of hook that this kernel supports, determined by trial. Nothing stays attached.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorExt, ErrorKind};
use serde_json::{json, Value};

use crate::hooks::Kind;

#[allow(clippy::all, dead_code, missing_docs, unused)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/features.skel.rs"));
}

const HOOKS: [&str; 4] = ["tp_btf", "raw_tp", "tracepoint", "fentry"];

/// Result for each kind of hook: verdict (`supported`, `unsupported` or `unknown`) and detail (the kernel's message).
///
/// Only a refusal by the kernel itself is `unsupported`. If a file system is missing (tracefs, for `tracepoint`), the
/// verdict is `unknown`.
pub fn features() -> Value {
    let before = libbpf_rs::set_print(None);
    let results = HOOKS
        .iter()
        .map(|&hook| {
            let (verdict, detail) = match trial(hook) {
                Ok(()) => ("supported", String::new()),
                Err(error) if inconclusive(hook, error.kind()) => {
                    ("unknown", kernel_message(&error))
                }
                Err(error) => ("unsupported", kernel_message(&error)),
            };
            (
                hook.to_owned(),
                json!({"verdict": verdict, "detail": detail}),
            )
        })
        .collect();
    libbpf_rs::set_print(before);
    Value::Object(results)
}

/// Kinds that the kernel may refuse entirely, each tried once with an empty program.
#[derive(Default)]
pub(crate) struct Trials {
    fentry: Option<Option<String>>,
}

impl Trials {
    /// The kernel's message, if it accepts no program of this kind.
    pub(crate) fn refused(&mut self, kind: Kind) -> Option<String> {
        if kind != Kind::Fentry {
            return None; // always available, or a trial costs as much as the programs themselves
        }
        self.fentry
            .get_or_insert_with(|| {
                let before = libbpf_rs::set_print(None);
                let answer = trial("fentry").err();
                let answer =
                    answer.map(|error| format!("fentry/vfs_read: {}", kernel_message(&error)));
                libbpf_rs::set_print(before);
                answer
            })
            .clone()
    }
}

fn inconclusive(hook: &str, kind: ErrorKind) -> bool {
    hook == "tracepoint" && kind == ErrorKind::NotFound
        || matches!(kind, ErrorKind::OutOfMemory | ErrorKind::Interrupted)
}

/// The kernel's message with the name of its error.
pub(crate) fn kernel_message(error: &libbpf_rs::Error) -> String {
    let message = format!("{error:#}");
    let number = message
        .rsplit_once("(os error ")
        .and_then(|(_, rest)| rest.split(')').next()?.parse::<i32>().ok());
    number.map_or(message, |number| {
        let system = std::io::Error::from_raw_os_error(number).to_string();
        let meaning = system.split(" (os error").next().unwrap_or_default();
        format!("{} ({meaning})", errno_name(number))
    })
}

fn errno_name(number: i32) -> String {
    const NAMES: [(i32, &str); 10] = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EBUSY, "EBUSY"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::E2BIG, "E2BIG"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (524, "ENOTSUPP"),
    ];
    let entry = NAMES.iter().find(|(entry, _)| *entry == number);
    entry.map_or_else(|| format!("errno {number}"), |(_, name)| (*name).to_owned())
}

fn trial(hook: &str) -> Result<(), libbpf_rs::Error> {
    let mut place = MaybeUninit::uninit();
    let mut open = skeleton::FeaturesSkelBuilder::default().open(&mut place)?;
    open.progs.tp_btf.set_autoload(hook == "tp_btf");
    open.progs.raw_tp.set_autoload(hook == "raw_tp");
    open.progs.tracepoint.set_autoload(hook == "tracepoint");
    open.progs.fentry.set_autoload(hook == "fentry");
    let loaded = open
        .load()
        .map_err(|error| error.context("loading".to_owned()))?;
    let program = match hook {
        "tp_btf" => &loaded.progs.tp_btf,
        "raw_tp" => &loaded.progs.raw_tp,
        "tracepoint" => &loaded.progs.tracepoint,
        _ => &loaded.progs.fentry,
    };
    program
        .attach()
        .map(drop)
        .map_err(|error| error.context("attaching".to_owned()))
}
