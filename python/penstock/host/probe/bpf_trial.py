"""Trial of the kernel's support of BPF programs: loads and attaches empty ones (bpf(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Literal

Verdict = Literal["supported", "unsupported", "unknown"]

_BTF = Path("/sys/kernel/btf/vmlinux")
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _RAW_TRACEPOINT_OPEN = 5, 17
_TRACEPOINT, _RAW_TRACEPOINT, _TRACING = 5, 17, 26
_TRACE_RAW_TP, _TRACE_FENTRY = 23, 24
_TYPEDEF, _FUNC = 8, 12
#: r0 = 0; exit
_PROGRAM = bytes.fromhex("b7000000000000009500000000000000")
#: bytes after a type's three words: fixed, per member (Documentation/bpf/btf.rst)
_TAIL = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0)} | {
    15: (0, 12),
    17: (4, 0),
    19: (0, 12),
}
_libc = ctypes.CDLL(None, use_errno=True)


def trials() -> dict[str, tuple[Verdict, str]]:
    """Verdict and detail for tp_btf, raw_tp, tracepoint and fentry."""
    ids = _type_ids({("btf_trace_sys_enter", _TYPEDEF), ("vfs_read", _FUNC)})
    return {
        "tp_btf": _traced("btf_trace_sys_enter", _TRACE_RAW_TP, ids),
        "raw_tp": _attached(_RAW_TRACEPOINT, 0, 0, b"sys_enter"),
        "tracepoint": _loaded_only(),
        "fentry": _traced("vfs_read", _TRACE_FENTRY, ids),
    }


def _bpf(command: int, attribute: bytes) -> int:
    """Result of the call; negative: minus the error number."""
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None:
        return -errno.ENOTSUP
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    result = int(_libc.syscall(number, command, buffer, len(attribute)))
    return result if result >= 0 else -ctypes.get_errno()


def _load(kind: int, attach_kind: int, type_id: int) -> int:
    code = ctypes.create_string_buffer(_PROGRAM, len(_PROGRAM))
    licence = ctypes.create_string_buffer(b"GPL")
    attribute = struct.pack(
        "<IIQQIIQII16sIIIIQIIQIII4x",
        kind,
        len(_PROGRAM) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        *(0, 0, 0, 0, 0),
        b"penstock_trial",
        *(0, attach_kind, 0, 0, 0, 0, 0, 0, 0),
        type_id,
        0,
    )
    return _bpf(_PROG_LOAD, attribute)


def _attached(kind: int, attach_kind: int, type_id: int, name: bytes | None) -> tuple[Verdict, str]:
    program = _load(kind, attach_kind, type_id)
    if program < 0:
        return _refused("load", -program)
    try:
        text = ctypes.create_string_buffer(name) if name is not None else None
        address = ctypes.addressof(text) if text is not None else 0
        link = _bpf(_RAW_TRACEPOINT_OPEN, struct.pack("<QIIQ", address, program, 0, 0))
        if link < 0:
            return _refused("attach", -link)
        os.close(link)
        return "supported", "loaded and attached for a trial"
    finally:
        os.close(program)


def _traced(name: str, attach_kind: int, ids: dict[str, int]) -> tuple[Verdict, str]:
    if name not in ids:
        return (
            ("unsupported", "no kernel BTF")
            if not _BTF.exists()
            else ("unknown", f"no {name} in BTF")
        )
    return _attached(_TRACING, attach_kind, ids[name], None)


def _loaded_only() -> tuple[Verdict, str]:
    program = _load(_TRACEPOINT, 0, 0)
    if program < 0:
        return _refused("load", -program)
    os.close(program)
    return "supported", "loaded for a trial"


def _refused(step: str, error: int) -> tuple[Verdict, str]:
    detail = f"{step}: {os.strerror(error)}"
    denied = error in (errno.EPERM, errno.EACCES)
    if error == errno.ENOTSUP or (denied and os.geteuid() != 0):
        return "unknown", detail
    return "unsupported", detail


def _type_ids(types: set[tuple[str, int]]) -> dict[str, int]:
    """BTF ids of named types of a kind in the running kernel; unknown ones are omitted."""
    try:
        raw = _BTF.read_bytes()
    except OSError:
        return {}
    header, types_at, types_len, strings_at, strings_len = struct.unpack_from("<IIIII", raw, 4)
    strings = raw[header + strings_at : header + strings_at + strings_len]
    sought = {}
    for name, kind in types:
        at = strings.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            sought[at + 1, kind] = name
    ids: dict[str, int] = {}
    at, end, number = header + types_at, header + types_at + types_len, 0
    entry = struct.Struct("<II")
    while at < end and len(ids) < len(sought):
        number += 1
        name_at, info = entry.unpack_from(raw, at)
        kind = info >> 24 & 0x1F
        hit = sought.get((name_at, kind))
        if hit is not None:
            ids[hit] = number
        own, each = _TAIL.get(kind, (0, 0))
        at += 12 + own + each * (info & 0xFFFF)
    return ids
