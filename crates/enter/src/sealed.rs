//! A process in a node exposes its program (`/proc/PID/exe`), and the node's root may write to that file.
//! Therefore a process that enters a node runs from a sealed copy in memory.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStringExt;

use crate::{check, named};

const ITSELF: &str = "/proc/self/exe";
const SEALS: libc::c_int =
    libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Execute this program again from memory, with the same arguments. Return at once if it runs from memory
/// already.
pub fn run_from_memory() -> io::Result<()> {
    let mut itself = File::open(ITSELF).map_err(|error| named(ITSELF, error))?;
    // SAFETY (all): valid descriptors and terminated strings.
    if unsafe { libc::fcntl(itself.as_raw_fd(), libc::F_GET_SEALS) } == SEALS {
        return Ok(());
    }
    let create = |more| unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | more;
        libc::memfd_create(c"penstock-enter".as_ptr(), flags)
    };
    let mut sealed_fd = create(libc::MFD_EXEC);
    if sealed_fd < 0 {
        sealed_fd = create(0); // before Linux 6.3
    }
    check(sealed_fd.into(), "memory for a program")?;
    let mut copy = unsafe { File::from_raw_fd(sealed_fd) };
    io::copy(&mut itself, &mut copy)?;
    let sealed = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    check(sealed.into(), "seals of a program")?;
    let argv: Vec<CString> = std::env::args_os()
        .map(|word| CString::new(word.into_vec()))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<_> = argv.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    extern "C" {
        static environ: *const *const libc::c_char;
    }
    unsafe { libc::fexecve(copy.as_raw_fd(), pointers.as_ptr(), environ) };
    Err(named("a program in memory", io::Error::last_os_error()))
}
