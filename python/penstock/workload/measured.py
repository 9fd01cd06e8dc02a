"""Results of parsers: measured values with units, and the declared I/O of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from penstock.errors import PenstockError

#: engines of fio with one request at a time, whatever its iodepth
SYNCHRONOUS_ENGINES = frozenset(("sync", "psync", "vsync", "pvsync", "pvsync2"))


class IncompleteError(PenstockError):
    """A recorded series lacks too many points: the run may be repeated."""


@dataclass(frozen=True)
class Measured:
    """One number from a program's report, in `unit`."""

    value: float
    unit: str


class Report(dict[str, Measured]):
    """Measured values by name; `missing` has the reasons for absent values, by name."""

    def __init__(self, values: Mapping[str, Measured], missing: Mapping[str, str] | None = None):
        super().__init__(values)
        self.missing = dict(missing or {})


@dataclass(frozen=True)
class JobSpec:
    """One I/O job of a command line. None: unspecified.

    `io_bytes`: amount of input and output, if it is not `size_bytes`. `beyond`: options that change the I/O
    in a way that the other fields do not express. `call`: number of the call in the command.
    """

    rw: str
    bs_bytes: int
    numjobs: int = 1
    iodepth: int = 1
    direct: bool = False
    size_bytes: int | None = None
    runtime_s: float | None = None
    name: str = ""
    ioengine: str = "psync"
    number_ios: int | None = None
    rwmixread: int = 50
    fsync: int = 0
    end_fsync: bool = False
    filename: str | None = None
    directory: str | None = None
    time_based: bool = False
    offset_bytes: int = 0
    offset_increment_bytes: int = 0
    io_bytes: int | None = None
    beyond: tuple[str, ...] = ()
    call: int = 0

    @property
    def direction(self) -> Literal["read", "write", "mixed"]:
        """Direction of the job: read, write, or both."""
        if self.rw in ("rw", "readwrite", "randrw"):
            return "mixed"
        return "write" if "write" in self.rw else "read"

    @property
    def random(self) -> bool:
        """True if offsets are random."""
        return self.rw.startswith("rand")


class ParserModule(Protocol):
    """The protocol of a parser module (see `workload/parsers`)."""

    RESPONSES: dict[str, str]

    def parse(self, run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Measured]:
        """Measured values by name; PenstockError if the program's report is missing or broken."""
        ...

    def operations(self, command: str) -> list[JobSpec] | None:
        """The I/O that the command declares; None if it cannot be determined."""
        ...
