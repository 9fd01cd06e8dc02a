"""Number of pages that the kernel maps around a page fault, limited to one during a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.settings import restore_own
from penstock.host.storage.mounts import mounts, unmount
from penstock.state import runtime_dir

_SETTING = "fault_around_bytes"
_ONE_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def single_page_faults(journal: Journal, debugfs: Path | None = None) -> Iterator[None]:
    """Context in which every fault of a mapped file maps one page, on the entire machine; restored
    afterwards.

    `debugfs` is its mount point (default: detected, else mounted temporarily). Raises PenstockError with the
    reason if the kernel does not permit it.
    """
    with _debugfs(journal) if debugfs is None else contextlib.nullcontext(debugfs) as base:
        path = base / _SETTING
        try:
            old = path.read_text().strip()
        except OSError as error:
            raise PenstockError(_refusal(error)) from error
        if old == str(_ONE_PAGE):
            yield
            return
        entry = journal.plan("setting", path, old=old, new=str(_ONE_PAGE))
        try:
            try:
                path.write_text(str(_ONE_PAGE))
            except OSError as error:
                raise PenstockError(_refusal(error)) from error
            journal.done(entry)
            yield
        finally:
            restore_own(entry, journal)


def _refusal(error: OSError) -> str:
    why = error.strerror or str(error)
    if isinstance(error, PermissionError):
        why = "the kernel is locked down (lockdown=integrity forbids writes to debugfs)"
    return (
        f"--mmap-exact needs to set {_SETTING} in debugfs: {why}. Without it the kernel maps further "
        "pages at each fault, and the result reports this"
    )


@contextlib.contextmanager
def _debugfs(journal: Journal) -> Iterator[Path]:
    there = next((mount.point for mount in mounts() if mount.fstype == "debugfs"), None)
    if there is not None:
        yield Path(there)
        return
    point = Path(tempfile.mkdtemp(prefix="debugfs-", dir=runtime_dir()))
    try:
        entry = journal.plan("mount", point)
        source = f"penstock:{entry.token}".encode()
        if _libc.mount(source, os.fsencode(point), b"debugfs", 0, None):
            error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            journal.undone(entry)
            raise PenstockError(_refusal(error))
        try:
            journal.done(entry)
            yield point
        finally:
            unmount(point)
            journal.undone(entry)
    finally:
        point.rmdir()
