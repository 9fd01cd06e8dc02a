"""Kernel settings that penstock has changed, and their restoration."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal


def text_of(path: Path) -> str:
    """Content of a file without surrounding white space; empty if unreadable."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def changed_since(now: str, ours: object, before: object) -> str:
    """Note on a setting that was changed by another program after us."""
    return f"another program set it to {now!r}; penstock had set {ours!r}, before that it was {before!r}"


def restore(entry: Entry) -> tuple[str, str]:
    """Restore the earlier value of a setting; returns the outcome (`undone`, `gone` or `left`) and a note.

    A setting that another program has changed since stays.
    """
    path = Path(entry.target)
    if not path.exists():
        return "gone", ""
    if isinstance(entry.new, list):
        return _take_switches(path, entry.new)
    now = path.read_text().strip()
    if now == str(entry.old).strip():
        return "gone", ""
    if now != str(entry.new).strip():
        return "left", changed_since(now, str(entry.new).strip(), str(entry.old).strip())
    path.write_text(str(entry.old))
    return "undone", ""


def restore_own(entry: Entry, journal: Journal) -> None:
    """Restore a setting of this process and close its entry, which stays open on failure."""
    try:
        restore(entry)
    except (OSError, PenstockError):
        return
    journal.undone(entry)


def _take_switches(path: Path, added: list[str]) -> tuple[str, str]:
    """Remove controllers that we added to a cgroup.subtree_control, unless another group of ours needs
    them."""
    on = set(path.read_text().split())
    ours = [c for c in added if c in on]
    if not ours:
        return "gone", ""
    if any(path.parent.glob("penstock-*")):
        raise PenstockError("another penstock group still needs it")
    path.write_text(" ".join(f"-{c}" for c in ours))
    return "undone", ""
