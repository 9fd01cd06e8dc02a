"""An importer: lines of a time [ns], a path, an offset and a size, after the line `toy trace`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import BadInput
from penstock.observe.trace.recordings.recording import Recording


class ToyTraces:
    """Reads of files."""

    what = "a toy's trace"

    def matches(self, head: bytes) -> bool:
        """True if the first line is that of a toy's trace."""
        return head.startswith(b"toy trace\n")

    def parts(self, path: Path) -> list[Path]:
        """No other parts: a trace is one file."""
        return []

    def read(self, paths: Sequence[Path], folder: Path) -> Recording:
        """Read the calls, which are all reads."""
        calls = []
        for path in paths:
            for number, line in enumerate(path.read_text(errors="replace").splitlines()[1:], 2):
                try:
                    at, name, offset, size = line.split()
                    call = {"t_ns": int(at), "offset_bytes": int(offset), "size_bytes": int(size)}
                except ValueError:
                    raise BadInput(f"{path}:{number}: found {line!r}; expected a call") from None
                calls.append(call | {"op": "read", "file": name})
        return Recording.of_calls(folder, calls, {"format": "toy", "not_known": ["latencies"]})


traces = ToyTraces()
