"""Attempts that were interrupted, from the marks in incomplete bundles."""

from __future__ import annotations

from pathlib import Path

from penstock.archive.bundle import Bundle, partial_path

#: file of an incomplete bundle with the number of its attempt
_ATTEMPT_FILE = "attempt"


def note_begun(bundle: Bundle, number: int) -> None:
    """Write the number of the bundle's attempt, until `note_done`."""
    (bundle.path / _ATTEMPT_FILE).write_text(f"{number}\n")


def note_done(bundle: Bundle) -> None:
    """Mark the attempt as completed."""
    (bundle.path / _ATTEMPT_FILE).unlink()


def note_interrupted(out: Path, run_id: str, number: int) -> None:
    """Record an interrupted attempt: the next one is `number` + 1."""
    place = partial_path(out / "runs" / run_id)
    place.mkdir(parents=True, exist_ok=True)
    (place / _ATTEMPT_FILE).write_text(f"{number}\n")


def interrupted_attempts(out: Path) -> dict[str, int]:
    """Number of the interrupted attempt, by run."""
    attempts = {}
    for note in (out / "runs").glob(f".*.partial/{_ATTEMPT_FILE}"):
        run_id = note.parent.name.removeprefix(".").removesuffix(".partial")
        try:
            attempts[run_id] = int(note.read_text())
        except (OSError, ValueError):
            attempts[run_id] = 1
    return attempts
