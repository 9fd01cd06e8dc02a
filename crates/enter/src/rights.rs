//! Rights of a process of a node: capabilities and a system call filter.

use std::fs;
use std::io;
use std::path::Path;

use crate::{check, named};

/// From linux/capability.h: sets of 64 bits in two halves.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Rights to which a process is about to be limited.
pub struct Rights {
    filter: Vec<libc::sock_filter>,
    capabilities: u64,
    user: Option<(u32, u32)>,
}

impl Rights {
    /// Read the filter. Call this while its path is still valid.
    pub fn load(filter: &Path, capabilities: u64, user: Option<(u32, u32)>) -> io::Result<Self> {
        let raw = fs::read(filter).map_err(|error| named(filter.display(), error))?;
        let filter = raw
            .chunks_exact(8)
            .map(|word| libc::sock_filter {
                code: u16::from_ne_bytes([word[0], word[1]]),
                jt: word[2],
                jf: word[3],
                k: u32::from_ne_bytes([word[4], word[5], word[6], word[7]]),
            })
            .collect();
        Ok(Rights {
            filter,
            capabilities,
            user,
        })
    }

    /// Drop all other rights permanently. Install the filter before dropping capabilities: while this process has
    /// more capabilities than the processes of the node, none of them can inspect it.
    pub fn keep_only(mut self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.filter.len()).map_err(io::Error::other)?,
            filter: self.filter.as_mut_ptr(),
        };
        // SAFETY: a filter of that length; plain system calls on this process, which has one thread.
        unsafe {
            let installed = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                &program,
            );
            check(installed, "the filter of system calls")?;
            for number in 0..64 {
                if self.capabilities >> number & 1 == 0
                    && libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) < 0
                {
                    let error = io::Error::last_os_error();
                    if error.raw_os_error() == Some(libc::EINVAL) {
                        break; // the kernel has no more capabilities
                    }
                    return Err(named("capabilities", error));
                }
            }
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL,
                0,
                0,
                0,
            );
            if let Some((user, group)) = self.user {
                check(libc::setgroups(0, std::ptr::null()).into(), "groups")?;
                check(libc::setresgid(group, group, group).into(), "group")?;
                check(libc::setresuid(user, user, user).into(), "user")?;
            }
            let header = Header {
                version: CAPABILITY_VERSION_3,
                pid: 0,
            };
            let mut current = [Half::default(); 2];
            check(
                libc::syscall(libc::SYS_capget, &header, &mut current),
                "capabilities",
            )?;
            for (half, requested) in current
                .iter_mut()
                .zip([self.capabilities as u32, (self.capabilities >> 32) as u32])
            {
                half.permitted &= requested;
                half.effective = half.permitted;
                half.inheritable = 0;
            }
            check(
                libc::syscall(libc::SYS_capset, &header, &current),
                "capabilities",
            )?;
        }
        Ok(())
    }
}
