//! Keep idle processors awake while requests arrive.
//!
//! An idle processor needs time to wake: tens of microseconds under a hypervisor, and twice per request, on
//! arrival and on reply. While programs send requests to a disk of this server, the server sets the kernel's PM
//! QoS request `/dev/cpu_dma_latency` to 0, so that idle processors poll for work instead of sleeping. This
//! costs power, but takes no processor time from tasks. The kernel drops the request with the descriptor,
//! however the process ends.
//!
//! Source: Documentation/power/pm_qos_interface.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

const INTERFACE: &str = "/dev/cpu_dma_latency";

const ASLEEP: u8 = 0;
const AWAKE: u8 = 1;
/// The host refuses the request.
const REFUSED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(ASLEEP);
static ARRIVED: AtomicBool = AtomicBool::new(false);
static LATENCY_REQUEST: Mutex<Option<File>> = Mutex::new(None);

fn hold() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(INTERFACE)?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

/// Register a request: processors stay awake from now on.
pub fn stay() {
    ARRIVED.store(true, Ordering::Relaxed);
    if STATE.load(Ordering::Relaxed) != ASLEEP {
        return;
    }
    let mut request = LATENCY_REQUEST
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if STATE.load(Ordering::Relaxed) != ASLEEP {
        return;
    }
    let state = match hold() {
        Ok(file) => {
            *request = Some(file);
            AWAKE
        }
        Err(_) => REFUSED,
    };
    STATE.store(state, Ordering::Relaxed);
}

/// True if a request has arrived since the last call.
pub fn take_arrived() -> bool {
    ARRIVED.swap(false, Ordering::Relaxed)
}

/// Let processors sleep until the next request.
pub fn rest() {
    let mut request = LATENCY_REQUEST
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if request.take().is_some() {
        STATE.store(ASLEEP, Ordering::Relaxed);
    }
}

/// True unless the host has refused the request.
pub fn possible() -> bool {
    STATE.load(Ordering::Relaxed) != REFUSED
}
