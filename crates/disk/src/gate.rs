//! Checks before a disk serves a request: faults, a limited size, the record of unflushed data. A disk
//! without them pays for one comparison.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use penstock_station::Op;

use crate::faults::Faults;
use crate::space::Space;
use crate::unsynced::Unsynced;

/// Faults are set.
pub const FAULTS: u32 = 1;
/// The disk has its own size.
pub const SIZED: u32 = 2;
/// Unflushed data is recorded.
pub const VOLATILE: u32 = 4;
/// The power is off.
pub const OFF: u32 = 8;

/// Checks of one disk.
#[derive(Debug, Default)]
pub struct Gate {
    up: AtomicU32,
    faults: RwLock<Arc<Faults>>,
    unsynced: Mutex<Option<Unsynced>>,
    space: Mutex<Option<Space>>,
}

pub(crate) fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Gate {
    /// Active checks: 0 for none, otherwise a combination of the constants above.
    #[inline]
    pub fn up(&self) -> u32 {
        self.up.load(Ordering::Acquire)
    }

    fn raise(&self, bit: u32, on: bool) {
        if on {
            self.up.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.up.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Current faults.
    pub fn faults(&self) -> Arc<Faults> {
        self.faults
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Set the faults.
    pub fn set_faults(&self, faults: Faults) {
        let any = faults.any();
        *self.faults.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(faults);
        self.raise(FAULTS, any);
    }

    /// Lock and return the record of unflushed data; None if the disk has none.
    pub fn unsynced(&self) -> MutexGuard<'_, Option<Unsynced>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Start or stop recording unflushed data. Existing data counts as durable.
    pub fn set_volatile(&self, limit_bytes: Option<u64>) {
        let mut unsynced = self.unsynced();
        match (limit_bytes, unsynced.is_some()) {
            (Some(limit_bytes), false) => *unsynced = Some(Unsynced::new(limit_bytes)),
            (None, true) => *unsynced = None,
            _ => {}
        }
        self.raise(VOLATILE, limit_bytes.is_some());
    }

    /// Lock and return the space of the disk; None if the disk has no size of its own.
    pub fn space(&self) -> MutexGuard<'_, Option<Space>> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set or remove the size of the disk.
    pub fn set_space(&self, space: Option<Space>) {
        self.raise(SIZED, space.is_some());
        *self.space() = space;
    }

    /// Switch the power off or on.
    pub fn set_off(&self, off: bool) {
        self.raise(OFF, off);
    }

    /// Refuse a request that does not reach the device: failed, without power, or read-only.
    pub fn admit(&self, op: Op) -> io::Result<()> {
        let up = self.up();
        if up & (FAULTS | OFF) == 0 {
            return Ok(());
        }
        if up & OFF != 0 {
            return Err(error(libc::EIO));
        }
        let faults = self.faults();
        match op {
            _ if faults.fail_stop => Err(error(libc::EIO)),
            Op::Write if faults.read_only => Err(error(libc::EROFS)),
            _ => Ok(()),
        }
    }

    /// Refuse changes of names and attributes; `new` is true if the change creates a name.
    pub fn admit_change(&self, new: bool) -> io::Result<()> {
        let up = self.up();
        if up & OFF != 0 {
            return Err(error(libc::EIO));
        }
        if up & FAULTS != 0 {
            let faults = self.faults();
            let admitted = if new {
                faults.on_make()
            } else {
                faults.on_change()
            };
            admitted.map_err(error)?;
        }
        if new && up & SIZED != 0 && self.space().is_some_and(|space| space.free_bytes() == 0) {
            return Err(error(libc::ENOSPC));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_flags_follow_the_faults() {
        let gate = Gate::default();
        assert_eq!(gate.up(), 0);
        gate.set_faults(Faults {
            read_only: true,
            ..Faults::default()
        });
        assert_eq!(gate.up(), FAULTS);
        let refused = gate.admit(Op::Write).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        assert!(gate.admit(Op::Read).is_ok());
        gate.set_faults(Faults::default());
        assert_eq!(gate.up(), 0);
        gate.set_off(true);
        assert!(gate.admit(Op::Read).is_err() && gate.admit_change(false).is_err());
    }
}
