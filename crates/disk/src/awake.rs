//! Processors that have nothing to do stay awake while requests come.
//!
//! A processor that sleeps takes its time to wake: tens of microseconds where a hypervisor has to be asked, and
//! another time at each request, on the way in and on the way out. While some program asks a disk of this server,
//! the server holds the kernel's PM QoS request `/dev/cpu_dma_latency` at 0: processors without work look for
//! some instead. It costs the power that they draw, and no task its processor. Nothing is left behind: the kernel
//! drops the request with the descriptor, however the process ends.
//!
//! Source: Documentation/power/pm_qos_interface.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

const INTERFACE: &str = "/dev/cpu_dma_latency";

const ASLEEP: u8 = 0;
const AWAKE: u8 = 1;
/// This host does not let itself be asked.
const REFUSED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ASLEEP);
static ASKED: AtomicBool = AtomicBool::new(false);
static HELD: Mutex<Option<File>> = Mutex::new(None);

fn hold() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(INTERFACE)?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

/// A request has come: processors stay awake from here on.
pub fn stay() {
    ASKED.store(true, Ordering::Relaxed);
    if STATE.load(Ordering::Relaxed) != ASLEEP {
        return;
    }
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if STATE.load(Ordering::Relaxed) != ASLEEP {
        return;
    }
    let state = match hold() {
        Ok(file) => {
            *held = Some(file);
            AWAKE
        }
        Err(_) => REFUSED,
    };
    STATE.store(state, Ordering::Relaxed);
}

/// Whether a request has come since this was last asked.
pub fn asked() -> bool {
    ASKED.swap(false, Ordering::Relaxed)
}

/// No request has come for a while: they may sleep until the next one.
pub fn rest() {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.take().is_some() {
        STATE.store(ASLEEP, Ordering::Relaxed);
    }
}

/// Whether this host has let itself be asked, as far as it was.
pub fn possible() -> bool {
    STATE.load(Ordering::Relaxed) != REFUSED
}
