"""System call filter of a virtual node: a list of allowed calls, for seccomp(2).

Calls unknown to this module do not exist for the node (ENOSYS), so that programs fall back on older ones;
known but forbidden calls are refused (EPERM).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import PenstockError

#: processes, memory, files, sockets, signals, time: calls on a program's own resources
_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close
close_range lseek dup dup2 dup3 pipe pipe2 fcntl ioctl flock select pselect6 poll ppoll epoll_create
epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4
timerfd_create timerfd_settime timerfd_gettime inotify_init inotify_init1 inotify_add_watch
inotify_rm_watch fanotify_mark io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents
io_uring_setup io_uring_enter io_uring_register fsync fdatasync sync syncfs sync_file_range fallocate
truncate ftruncate fadvise64 readahead sendfile splice tee vmsplice copy_file_range
stat fstat lstat newfstatat statx access faccessat faccessat2 chmod fchmod fchmodat fchmodat2 chown fchown
lchown fchownat umask utime utimes utimensat futimesat mknod mknodat mkdir mkdirat rmdir link linkat
symlink symlinkat readlink readlinkat unlink unlinkat rename renameat renameat2 getdents getdents64 getcwd
chdir fchdir statfs fstatfs statmount listmount setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr setxattrat getxattrat listxattrat
removexattrat name_to_handle_at cachestat
mmap munmap mprotect mremap msync mincore madvise brk mlock mlock2 mlockall munlock munlockall mseal
memfd_create memfd_secret membarrier pkey_alloc pkey_free pkey_mprotect remap_file_pages get_mempolicy
set_mempolicy mbind set_mempolicy_home_node map_shadow_stack shmget shmat shmdt shmctl semget semop
semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr
fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp getsid
setpgid setsid getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid
setresuid setresgid setfsuid setfsgid setgroups capget capset prctl arch_prctl seccomp ptrace
process_vm_readv process_vm_writev process_mrelease getpriority setpriority ioprio_get ioprio_set
getrlimit setrlimit prlimit64 getrusage times sched_yield sched_getaffinity sched_setaffinity
sched_getparam sched_setparam sched_getscheduler sched_setscheduler sched_getattr sched_setattr
sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu rseq set_tid_address
set_robust_list get_robust_list set_thread_area get_thread_area modify_ldt futex futex_waitv futex_wake
futex_wait futex_requeue restart_syscall uprobe uretprobe pidfd_open pidfd_send_signal kill tkill tgkill
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending rt_sigtimedwait rt_sigqueueinfo
rt_tgsigqueueinfo sigaltstack alarm pause getitimer setitimer landlock_create_ruleset landlock_add_rule
landlock_restrict_self
bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt socketpair sendto
recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown
time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep adjtimex clock_adjtime timer_create
timer_settime timer_gettime timer_getoverrun timer_delete uname sysinfo getrandom riscv_flush_icache
riscv_hwprobe
""".split()

#: calls allowed with a capability
_BY_CAPABILITY = {
    "BPF": ["bpf"],
    "DAC_READ_SEARCH": ["open_by_handle_at"],
    "PERFMON": ["perf_event_open"],
    "SYS_ADMIN": """bpf clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount
        mount_setattr move_mount open_tree perf_event_open pivot_root quotactl quotactl_fd setdomainname
        sethostname setns swapon swapoff syslog umount2 unshare""".split(),
    "SYS_BOOT": ["reboot", "kexec_load", "kexec_file_load"],
    "SYS_CHROOT": ["chroot"],
    "SYS_MODULE": ["init_module", "finit_module", "delete_module"],
    "SYS_NICE": ["move_pages", "migrate_pages"],
    "SYS_PACCT": ["acct"],
    "SYS_PTRACE": ["kcmp", "pidfd_getfd", "process_madvise"],
    "SYS_RAWIO": ["iopl", "ioperm"],
    "SYS_TIME": ["settimeofday", "clock_settime"],
    "SYS_TTY_CONFIG": ["vhangup"],
    "SYSLOG": ["syslog"],
}
#: never allowed: kernel keys have no namespace, page faults handled by a program block the kernel
_NEVER = ["add_key", "keyctl", "request_key", "userfaultfd"]
#: glibc falls back on clone(2); the flags of clone3 are in memory, which a filter cannot read
_ABSENT = {"clone3"}

_NAMESPACES = 0x7E020000  # CLONE_NEW… in the flags of clone(2)
_FLAGS_OF_CLONE = 1 if platform.machine().startswith("s390") else 0
#: socket families that bypass the network namespace: AF_ALG, AF_VSOCK
_FAMILIES = ((38, "LT"), (39, "EQ"), (40, "GT"))
#: Linux personas, and the query without a change (personality(2))
_PERSONAS = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_OPERATORS = {"LT": 2, "EQ": 4, "GT": 6, "MASKED_EQ": 7}
_OPTIMIZE, _BINARY_TREE = 8, 2

#: names of calls, 0 or their error, and the condition on an argument: (number, operator, a, b)
Rule = tuple[list[str], int, tuple[int, str, int, int] | None]


def rules(capabilities: Iterable[str]) -> Iterator[Rule]:
    """Rules for system calls in a node with these capabilities."""
    own = set(capabilities)
    gained = {call for name in own for call in _BY_CAPABILITY.get(name, ())}
    yield [*_ALLOWED, *sorted(gained)], 0, None
    refused = {call for calls in _BY_CAPABILITY.values() for call in calls} - gained
    yield [*sorted(refused - _ABSENT), *_NEVER], errno.EPERM, None
    for family, operator in _FAMILIES:
        yield ["socket"], 0, (0, operator, family, 0)
    for persona in _PERSONAS:
        yield ["personality"], 0, (0, "EQ", persona, 0)
    if "SYS_ADMIN" in own:
        yield ["clone"], 0, None
    else:
        yield ["clone"], 0, (_FLAGS_OF_CLONE, "MASKED_EQ", _NAMESPACES, 0)


def oci(capabilities: Iterable[str]) -> dict[str, Any]:
    """Rules in the format of the OCI runtime specification."""

    def one(names: list[str], error: int, condition: tuple[int, str, int, int] | None) -> Any:
        rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ALLOW"}
        if error:
            rule |= {"action": "SCMP_ACT_ERRNO", "errnoRet": error}
        if condition is not None:
            index, operator, value, second = condition
            rule["args"] = [
                {"index": index, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{operator}"}
            ]
        return rule

    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "syscalls": [one(*rule) for rule in rules(capabilities)],
    }


class _Condition(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def missing() -> str:
    """The library that is missing to compile a filter, as text; empty if none."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return "libseccomp (Debian package libseccomp2) is not installed"
    return ""


def compiled(capabilities: Iterable[str]) -> bytes:
    """Filter as a BPF program for this machine's kernel. Raises PenstockError without libseccomp."""
    if lacking := missing():
        raise PenstockError(lacking)
    library = ctypes.CDLL(_LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_errno(errno.ENOSYS)))
    try:
        library.seccomp_attr_set(context, _OPTIMIZE, _BINARY_TREE)
        for names, error, condition in rules(capabilities):
            action = _errno(error) if error else _ALLOW
            for name in names:
                number = library.seccomp_syscall_resolve_name(name.encode())
                if number < 0:
                    continue  # of another architecture, or newer than the library
                conditions = (_Condition * 1)()
                if condition is not None:
                    argument, operator, a, b = condition
                    conditions[0] = _Condition(argument, _OPERATORS[operator], a, b)
                count = 0 if condition is None else 1
                result = library.seccomp_rule_add_array(context, action, number, count, conditions)
                if result < 0:
                    raise PenstockError(f"filter of system calls: {name}: {os.strerror(-result)}")
        with tempfile.TemporaryFile() as file:
            if (result := library.seccomp_export_bpf(context, file.fileno())) < 0:
                raise PenstockError(f"filter of system calls: {os.strerror(-result)}")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


def _errno(number: int) -> int:
    return 0x00050000 | number
