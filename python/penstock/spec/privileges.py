"""Additional privileges of a node: capabilities and devices, by name."""

from __future__ import annotations

import re

#: without CAP_, by number (capabilities(7), linux/capability.h)
CAPABILITIES = tuple(
    """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
    SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
    AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
    PERFMON BPF CHECKPOINT_RESTORE""".split()
)
_DEVICE = re.compile(r"/dev(/[A-Za-z0-9_:-][A-Za-z0-9_.:-]*)+")


def parse_privilege(text: str) -> str:
    """A capability or the path of a device; ValueError for others."""
    if text not in CAPABILITIES and not _DEVICE.fullmatch(text):
        raise ValueError(
            "a capability, such as SYS_TIME, or a device of the host, such as /dev/fuse"
        )
    return text
