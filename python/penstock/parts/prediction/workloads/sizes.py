"""Sizes for files that a generator made uniform.

Generators of workflows may give every file of a kind one size (WfCommons issue 110), which hides the effect
of uneven files on a schedule. A size model samples others: around the same mean and with the same sum, or
around means from a table. The same seed gives the same sizes.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.document import read_document, shown
from penstock.spec.units import MOST_BYTES

#: part of the warning about uniform sizes; predictions find the warning by it
ALIKE = "as large as all others of their kind"
#: a kind of fewer files is no evidence of uniform sizes
FEWEST = 5
#: share of files of uniform kinds above which a warning is given
ALIKE_SHARE = 0.9


@dataclass(frozen=True)
class Kind:
    """A file's kind: the stage that writes it (or first reads an input), and the suffix of its name."""

    stage: str
    suffix: str
    written: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kind in a table of means, most specific first."""
        return (f"{self.stage}{self.suffix}", self.stage, self.suffix)

    def __str__(self) -> str:
        return (
            f"{'written' if self.written else 'read'} by {self.stage}, {self.suffix or 'no suffix'}"
        )


def suffix_of(name: str) -> str:
    """Suffix of a file's name, '' if it has none."""
    own, dot, suffix = name[name.rfind("/") + 1 :].rpartition(".")
    if suffix.isdigit():
        own, dot, suffix = own.rpartition(".")
    return f".{suffix}" if own and dot and suffix else ""


def alike(sizes: Mapping[str, int], kinds: Mapping[str, Kind]) -> str:
    """Warning if nearly all files have the size of all others of their kind; empty otherwise."""
    groups = _groups(sizes, kinds)
    big = {k: names for k, names in groups.items() if len(names) >= FEWEST}
    files = sum(len(names) for names in big.values())
    same = [names for names in big.values() if len({sizes[n] for n in names}) == 1]
    count = sum(len(names) for names in same)
    if not files or count < ALIKE_SHARE * files:
        return ""
    return (
        f"{count} of {files} files are exactly {ALIKE}, as from a generator; "
        "a size model (--sizes lognormal:0.5) predicts the effect of different sizes"
    )


@dataclass(frozen=True)
class SizeModel:
    """Model of sizes. `spread`: standard deviation of the size's logarithm; `means`: bytes by kind.

    Without `means`, the sum of each kind is preserved exactly. With them, a kind in the table has that mean
    (its sum is the mean times its files), and all others are unchanged.
    """

    spread: float = 0.5
    means: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and 0 <= self.spread <= 5):
            raise BadInput(f"a spread of {self.spread}; a number from 0 to 5 is expected")
        if self.seed < 0:
            raise BadInput(f"the seed {self.seed}; an integer of at least 0 is expected")

    @classmethod
    def parse(cls, text: str, seed: int = 1) -> SizeModel:
        """`lognormal:SPREAD`, or `table:FILE` or `table:FILE:SPREAD`; BadInput for others.

        The file is JSON or YAML: bytes by stage, by suffix (`.fits`), or by both together (`mProject.fits`).
        """
        kind, _, rest = text.partition(":")
        if kind == "lognormal":
            return cls(_spread(rest, text), seed=seed)
        if kind == "table" and rest:
            file, _, spread = rest.rpartition(":")
            if file and _is_number(spread):
                return cls(_spread(spread, text), _table(Path(file)), seed)
            return cls(0.0, _table(Path(rest)), seed)
        raise BadInput(
            f"sizes {text!r}; expected lognormal:SPREAD, table:FILE or table:FILE:SPREAD"
        )

    def sizes(self, sizes: Mapping[str, int], kinds: Mapping[str, Kind]) -> dict[str, int]:
        """Sampled sizes in bytes, of the same files."""
        new_sizes = dict(sizes)
        for kind, names in _groups(sizes, kinds).items():
            mean = next((self.means[n] for n in kind.names if n in self.means), None)
            if self.means and mean is None:
                continue
            total = sum(sizes[n] for n in names) if mean is None else round(mean * len(names))
            drawn = self._shares(kind, len(names))
            new_sizes.update(zip(names, _integers(drawn, total), strict=True))
        return new_sizes

    def _shares(self, kind: Kind, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Relative sizes within a kind, which add up to one."""
        key = zlib.crc32(f"{kind.written}\0{kind.stage}\0{kind.suffix}".encode())
        drawn = np.exp(self.spread * np.random.default_rng([self.seed, key]).standard_normal(count))
        shares: np.ndarray[tuple[int], np.dtype[np.float64]] = drawn / drawn.sum()
        return shares


def _groups(sizes: Mapping[str, int], kinds: Mapping[str, Kind]) -> dict[Kind, list[str]]:
    groups: dict[Kind, list[str]] = defaultdict(list)
    for name in sizes:
        if name in kinds:
            groups[kinds[name]].append(name)
    return groups


def _integers(
    shares: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]], total: int
) -> list[int]:
    """Integers in proportion to `shares` that add up to `total`."""
    exact = np.asarray(shares, dtype=float) * float(total)
    rounded = [int(v) for v in np.floor(exact)]
    missing = total - sum(rounded)
    order = np.argsort(-(exact - np.floor(exact)), kind="stable")
    if missing < 0 or missing > len(rounded):  # above 2^53 the shares are not exact
        rounded[int(np.argmax(exact))] += missing
        return rounded
    for i in order[:missing]:
        rounded[int(i)] += 1
    return rounded


def _table(path: Path) -> dict[str, float]:
    document = read_document(path)
    if not isinstance(document.value, dict):
        document.mistake((), shown(document.value), "bytes by stage or suffix")
        document.check()
    for name, mean in document.value.items():
        good = isinstance(mean, int | float) and not isinstance(mean, bool)
        if not (good and 0 <= mean <= MOST_BYTES):
            document.mistake((name,), shown(mean), f"a mean size of {name!r} in bytes, at least 0")
    document.check()
    return {name: float(mean) for name, mean in document.value.items()}


def _spread(text: str, spec: str) -> float:
    if not _is_number(text):
        raise BadInput(f"sizes {spec!r}; expected a number as spread, such as lognormal:0.5")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
