"""Attempts that were begun and not finished: what a bundle that is being written says of them."""

from __future__ import annotations

from pathlib import Path

from penstock.archive.bundle import Bundle, partial_path

#: says in a bundle that is being written which attempt it is of
_ATTEMPT_FILE = "attempt"


def note_begun(bundle: Bundle, number: int) -> None:
    """Notes which attempt the bundle is of, until `note_done`."""
    (bundle.path / _ATTEMPT_FILE).write_text(f"{number}\n")


def note_done(bundle: Bundle) -> None:
    """The attempt came to its end."""
    (bundle.path / _ATTEMPT_FILE).unlink()


def note_interrupted(out: Path, run_id: str, number: int) -> None:
    """Notes that an attempt was begun and not finished: the next one is `number` + 1."""
    place = partial_path(out / "runs" / run_id)
    place.mkdir(parents=True, exist_ok=True)
    (place / _ATTEMPT_FILE).write_text(f"{number}\n")


def interrupted_attempts(out: Path) -> dict[str, int]:
    """The number of the attempt that was begun and not finished, by run."""
    attempts = {}
    for note in (out / "runs").glob(f".*.partial/{_ATTEMPT_FILE}"):
        run_id = note.parent.name.removeprefix(".").removesuffix(".partial")
        try:
            attempts[run_id] = int(note.read_text())
        except (OSError, ValueError):
            attempts[run_id] = 1
    return attempts
