//! Clients of a store: processes that have it open for writing, on this host or others.
//!
//! Each client has a file `clients/PREFIX` with its host, boot and process, and updates the file's time every few
//! seconds. If the boot is the current one, the client is alive while its process exists. Otherwise it is alive while
//! its file is recent.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::objects::{flush, Objects};

/// Interval at which a client updates the time of its file.
pub(crate) const TOUCHED_EVERY: Duration = Duration::from_secs(10);
/// Age of the file from which a client of another host counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(300);
const MOST_FILE_BYTES: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    host: String,
    boot_id: String,
    /// PID namespace of `pid`: pid_namespaces(7).
    #[serde(default)]
    pid_space: String,
    pid: u32,
    /// Start of the process in clock ticks after the boot.
    started: u64,
    role: Role,
}

/// Purpose of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Writer of versions.
    Writer,
    /// Remover of chunks.
    Collector,
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn pid_space() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

impl Identity {
    fn own(role: Role) -> Self {
        let pid = std::process::id();
        Identity {
            host: read("/proc/sys/kernel/hostname"),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            pid_space: pid_space(),
            pid,
            started: start_of(pid).unwrap_or(0),
            role,
        }
    }

    fn is_alive(&self, touched: SystemTime) -> bool {
        let same_boot = self.boot_id == read("/proc/sys/kernel/random/boot_id");
        // processes of another PID namespace, such as a container's, are not visible here
        if same_boot && self.pid_space == pid_space() {
            return start_of(self.pid) == Some(self.started);
        }
        let age = SystemTime::now().duration_since(touched);
        age.unwrap_or_default() < DEAD_AFTER // a time in the future means that the clocks differ
    }
}

/// Registration of this process, until it is dropped.
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Register this process. A writer and a collector that start at the same time see each other.
    ///
    /// Error: the process is a writer and there is a collector, or it is a collector and there is another client.
    pub fn register(objects: &Objects, role: Role) -> Result<Self> {
        let name = match role {
            Role::Writer => objects.names.prefix(),
            Role::Collector => objects.names.prefix() + "-collector",
        };
        let path = objects.clients().join(name);
        let (draft, mut file) = objects.draft()?;
        let text = serde_json::to_vec(&Identity::own(role)).unwrap_or_default();
        file.write_all(&text)
            .and_then(|()| flush(&file))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|error| Error::at(&path, error))?;
        let client = Client { path }; // dropping it removes its file if the registration fails
        let rivals: Vec<String> = others(objects)?
            .into_iter()
            .filter(|other| Role::Collector == role || other.identity.role == Role::Collector)
            .map(|other| format!("process {} on {}", other.identity.pid, other.identity.host))
            .collect();
        if rivals.is_empty() {
            return Ok(client);
        }
        Err(Error::Bad(match role {
            Role::Writer => format!(
                "garbage is collected by {}; mount it later",
                rivals.join(", ")
            ),
            Role::Collector => format!(
                "the store is used by {}; collect garbage there, or unmount it first",
                rivals.join(", ")
            ),
        }))
    }

    /// Update the time of the file. Do not create it again: another client removed it because this one seemed dead.
    pub fn touch(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.path);
        match file.and_then(|file| file.set_modified(SystemTime::now())) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Damaged(format!(
                "{}: the registration of this client is gone: it was taken for dead; mount the store again",
                self.path.display()
            ))),
            touched => touched.map_err(|error| Error::at(&self.path, error)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A live client of another process.
pub(crate) struct Other {
    identity: Identity,
    /// Prefix of its temporary files.
    pub(crate) prefix: String,
}

/// Return the other live clients. Remove the files of dead ones.
pub(crate) fn others(objects: &Objects) -> Result<Vec<Other>> {
    let directory = objects.clients();
    let mut alive = Vec::new();
    let entries = fs::read_dir(&directory).map_err(|error| Error::at(&directory, error))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&objects.names.prefix()) {
            continue;
        }
        let touched = entry.metadata().and_then(|facts| facts.modified());
        // a client with an unreadable file is not dead
        let identity = match identity(&entry.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            identity => identity.map_err(|error| Error::at(&entry.path(), error))?,
        };
        match (identity, touched) {
            (Some(identity), Ok(touched)) if identity.is_alive(touched) => {
                let prefix = name.trim_end_matches("-collector").to_owned();
                alive.push(Other { identity, prefix });
            }
            (_, Err(_)) => {} // it has just ended
            _ => _ = fs::remove_file(entry.path()),
        }
    }
    Ok(alive)
}

/// Client that a file describes; None if the file is damaged.
fn identity(path: &Path) -> std::io::Result<Option<Identity>> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut text = Vec::new();
    file.take(MOST_FILE_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}
