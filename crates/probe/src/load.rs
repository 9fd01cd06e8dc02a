//! Loader of the BPF object: loads and attaches the chosen programs, with fallbacks for those that the kernel refuses.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use crate::features::{kernel_message, Trials};
use crate::hooks::{choose, Choice, Findings, Kind, Limits};
use crate::mode::Mode;
use crate::skeleton::{OpenTraceSkel, TraceSkel, TraceSkelBuilder};
use crate::symbols::address_of;
use crate::ProbeError;

/// Attached programs, and the choices that led to them.
pub(crate) struct Loaded {
    pub skeleton: TraceSkel<'static>,
    /// Links; dropping them detaches the programs.
    pub _links: Vec<Link>,
    /// Names of the attached programs.
    pub programs: Vec<&'static str>,
    pub chosen: Vec<Choice>,
    pub findings: Findings,
}

impl Loaded {
    /// Report the pages of mapped files that all traced processes have, as presences.
    pub fn survey(&self) -> Result<(), ProbeError> {
        if !self.programs.contains(&SURVEY) {
            return Ok(());
        }
        let mut all = self.skeleton.object().progs_mut();
        let Some(program) = all.find(|program| program.name() == SURVEY) else {
            return Ok(());
        };
        let link = program.attach().map_err(ProbeError::Load)?;
        let mut walk = libbpf_rs::Iter::new(&link).map_err(ProbeError::Load)?;
        let mut none = Vec::new();
        std::io::Read::read_to_end(&mut walk, &mut none)
            .map_err(ProbeError::io("the mappings of the traced processes"))?;
        Ok(())
    }
}

/// Program that walks over mappings on request. It has no hook.
const SURVEY: &str = "survey_mappings";

/// Requirements of the loader besides the choice of hooks.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    pub mode: Mode,
    /// True to attach entry programs, for latencies.
    pub entries: bool,
    /// True to use the interruptible program bodies of fentry on any hook, for timing.
    pub interruptible: bool,
}

/// Load and attach by the first ways that work. `prepare` sets constants and sizes of a new object.
pub(crate) fn load(
    needs: Needs,
    limits: &Limits,
    prepare: impl Fn(&mut OpenTraceSkel<'static>) -> Result<(), ProbeError>,
) -> Result<Loaded, ProbeError> {
    let kernel = Btf::from_vmlinux().map_err(ProbeError::Load)?;
    let mut findings = Findings::default();
    let mut trials = Trials::default();
    let sections = sections()?;
    let hooks = hooks_of(&kernel);
    loop {
        let chosen = choose(needs.mode, limits, &mut findings, |program| {
            present(&hooks, sections.get(program).map_or("", String::as_str))
        });
        let needed = |name: &str| limits.needed.iter().any(|n| n == name);
        let lacking = |(f, way): &&Choice| way.is_none() && (f.required || needed(f.name));
        if let Some((feature, _)) = chosen.iter().find(lacking) {
            return Err(ProbeError::Refused {
                what: feature.without.into(),
                hooks: crate::hooks::report(&chosen, &findings)[feature.name]["reason"]
                    .as_str()
                    .unwrap_or_default()
                    .into(),
            });
        }
        // Some kinds are refused entirely; a trial with an empty program finds these at less cost.
        let refused = chosen.iter().find_map(|&(feature, way)| {
            let way = way?;
            Some((feature, way, trials.refused(way.kind)?))
        });
        if let Some((feature, way, reason)) = refused {
            findings.refuse(feature, way, reason);
            continue;
        }
        match attempt(needs, &chosen, &kernel, &prepare) {
            Ok((skeleton, links, programs)) => {
                return Ok(Loaded {
                    skeleton,
                    _links: links,
                    programs,
                    chosen,
                    findings,
                });
            }
            Err(error) => {
                let culprits = blame(needs, &chosen, &kernel, &prepare);
                if culprits.is_empty() {
                    return Err(error);
                }
                for (choice, reason) in culprits {
                    if let (feature, Some(way)) = choice {
                        findings.refuse(feature, way, reason);
                    }
                }
            }
        }
    }
}

type Attached = (TraceSkel<'static>, Vec<Link>, Vec<&'static str>);

fn attempt(
    needs: Needs,
    chosen: &[Choice],
    kernel: &Btf<'_>,
    prepare: &impl Fn(&mut OpenTraceSkel<'static>) -> Result<(), ProbeError>,
) -> Result<Attached, ProbeError> {
    let ways = || chosen.iter().filter_map(|(_, way)| *way);
    let exits = ways().flat_map(|way| way.programs);
    let entries = ways().flat_map(|way| way.entries).filter(|_| needs.entries);
    // exits first: an exit without an entry is recognised, but an entry without an exit would stay open
    let programs: Vec<&'static str> = exits.chain(entries).copied().collect();
    let mut open = open()?;
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, note_refusal)));
    let constants = open
        .maps
        .rodata_data
        .as_deref_mut()
        .ok_or_else(|| ProbeError::Request("the programs lack their constants".into()))?;
    let can_cast = kernel.type_by_name::<Func<'_>>("bpf_rdonly_cast").is_some();
    let typed = |kind| matches!(kind, Kind::Fentry | Kind::TpBtf);
    constants.probe_reads = !can_cast || ways().any(|way| !typed(way.kind));
    constants.cache_tells =
        (programs.iter()).any(|name| matches!(*name, "fault_in_page_cache" | "fault_asked"));
    if programs.contains(&"aio_direct_done") {
        constants.aio_complete_rw = address_of("aio_complete_rw");
    }
    constants.interruptible = needs.interruptible || ways().any(|way| way.kind == Kind::Fentry);
    prepare(&mut open)?;
    for mut program in open.open_object_mut().progs_mut() {
        let load = program
            .name()
            .to_str()
            .is_some_and(|name| programs.contains(&name));
        program.set_autoload(load);
    }
    let sections: HashMap<String, String> = (open.open_object().progs())
        .map(|p| (text_of(p.name()), text_of(p.section())))
        .collect();
    let mut skeleton = open.load().map_err(|error| match refused_program() {
        Some(program) => ProbeError::Hook {
            hook: sections.get(&program).cloned().unwrap_or(program),
            error: kernel_message(&error),
        },
        None => ProbeError::Load(error),
    })?;
    if programs.contains(&"find_direct_map") {
        crate::faults::find_direct_map(&mut skeleton)?;
    }
    let mut links = Vec::new();
    for name in &programs {
        let mut all = skeleton.object().progs_mut();
        let program = all
            .find(|program| program.name() == *name)
            .ok_or_else(|| ProbeError::Request(format!("the object has no program {name}")))?;
        match program.section().to_str() {
            Some("perf_event") => links.extend(crate::faults::attach(&program)?),
            Some("syscall" | "iter/task_vma") => {} // run by this process only
            _ => links.push(program.attach().map_err(|error| ProbeError::Hook {
                hook: program.section().to_string_lossy().into_owned(),
                error: kernel_message(&error),
            })?),
        }
    }
    Ok((skeleton, links, programs))
}

/// Last message of libbpf about a refused program, because the error itself does not name it.
static REFUSED: Mutex<Option<String>> = Mutex::new(None);

fn note_refusal(_: libbpf_rs::PrintLevel, line: String) {
    let name = line
        .split_once("prog '")
        .and_then(|(_, rest)| rest.split_once('\'')?.0.to_owned().into());
    if let (Some(name), Ok(mut refused)) = (name, REFUSED.lock()) {
        *refused = Some(name);
    }
}

fn refused_program() -> Option<String> {
    REFUSED.lock().ok()?.take()
}

fn text_of(text: &std::ffi::OsStr) -> String {
    text.to_string_lossy().into_owned()
}

/// Choices that the kernel refuses, each tried separately, with its messages.
fn blame(
    needs: Needs,
    chosen: &[Choice],
    kernel: &Btf<'_>,
    prepare: &impl Fn(&mut OpenTraceSkel<'static>) -> Result<(), ProbeError>,
) -> Vec<(Choice, String)> {
    let taken = chosen.iter().filter(|(_, way)| way.is_some());
    taken
        .filter_map(|choice| {
            let single = std::slice::from_ref(choice);
            let error = attempt(needs, single, kernel, prepare).err()?;
            Some((*choice, reason(&error)))
        })
        .collect()
}

fn reason(error: &ProbeError) -> String {
    match error {
        ProbeError::Load(inner) => kernel_message(inner),
        other => other.to_string(),
    }
}

fn open() -> Result<OpenTraceSkel<'static>, ProbeError> {
    // Never freed: the generated types borrow from it.
    let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    TraceSkelBuilder::default()
        .open(place)
        .map_err(ProbeError::Load)
}

/// Section of every program, which names its hook.
fn sections() -> Result<HashMap<String, String>, ProbeError> {
    let open = open()?;
    let programs = open.open_object().progs();
    let pairs = programs.map(|p| (text_of(p.name()), text_of(p.section())));
    Ok(pairs.collect())
}

/// Functions and tracepoints in the kernel's type information.
struct Hooks<'a> {
    functions: HashSet<&'a OsStr>,
    tracepoints: HashSet<&'a OsStr>,
}

/// Read all types once, because each look-up by name would read them again.
fn hooks_of<'a>(kernel: &'a Btf<'_>) -> Hooks<'a> {
    let functions = kernel.type_by_kind::<Func<'_>>();
    let types = kernel.type_by_kind::<Typedef<'_>>();
    Hooks {
        functions: functions.filter_map(|function| function.name()).collect(),
        tracepoints: types
            .filter_map(|named| named.name())
            .filter(|name| name.as_bytes().starts_with(TRACEPOINT.as_bytes()))
            .collect(),
    }
}

/// Prefix of the type of a tracepoint.
const TRACEPOINT: &str = "btf_trace_";

/// Ok if the kernel has the function or tracepoint of a section, else the reason.
fn present(hooks: &Hooks<'_>, section: &str) -> Result<(), String> {
    let (kind, target) = section.split_once('/').unwrap_or((section, ""));
    let exists = match kind {
        "fentry" | "fexit" => hooks.functions.contains(OsStr::new(target)),
        "tp_btf" => {
            let name = format!("{TRACEPOINT}{target}");
            hooks.tracepoints.contains(OsStr::new(&name))
        }
        _ => true,
    };
    exists
        .then_some(())
        .ok_or_else(|| format!("ENOENT (this kernel has no {target})"))
}
