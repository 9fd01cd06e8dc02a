//! Information of the kernel about a loaded program.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys::{bpf_obj_get_info_by_fd, bpf_prog_info};

/// Information about a program; all zero if the kernel returns an error.
fn info(program: BorrowedFd<'_>) -> bpf_prog_info {
    let mut info = bpf_prog_info::default();
    let mut size = std::mem::size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `size` bytes into `info`.
    let status =
        unsafe { bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut size) };
    if status == 0 {
        info
    } else {
        bpf_prog_info::default()
    }
}

/// Run time and number of runs, (ns, runs); zero unless the kernel's BPF statistics are enabled.
pub(crate) fn run_time(program: BorrowedFd<'_>) -> (u64, u64) {
    let info = info(program);
    (info.run_time_ns, info.run_cnt)
}

/// Runs that the kernel skipped because the program was already running on that CPU.
pub(crate) fn recursion_misses(program: BorrowedFd<'_>) -> u64 {
    info(program).recursion_misses
}
