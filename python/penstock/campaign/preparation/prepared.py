"""Prepared data: created once per resolved prepare command, shared by treatments directly or as a copy.

A directory under `work/prepared/` is named by the hash of its inputs and has one directory per disk. The file
`complete` is written last: without it the data are of an interrupted preparation and are created again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.archive.bundle import directory_bytes
from penstock.errors import PenstockError
from penstock.study.resolve import ResolvedRun

_COMPLETE = "complete"


@dataclass(frozen=True)
class PreparedSet:
    """Prepared data of one kind: directory of each disk, total size [bytes] and signature."""

    key: str
    disks: dict[str, Path]
    size_bytes: int
    signature: str
    shape: str


def preparation_key(
    command: str | None, disks: list[str], env: Mapping[str, str], user: str | None
) -> str:
    """Name of prepared data: a hash of the command (without its disks' paths) and its environment."""
    text = json.dumps([command, sorted(disks), sorted(env.items()), user])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def data_key(resolved: ResolvedRun) -> str:
    """Name of the prepared data of a run."""
    places = [d.disk_id + (f"={d.directory}" if d.directory else "") for d in resolved.disks]
    return preparation_key(resolved.prepare, places, resolved.env, resolved.user)


class PreparedData:
    """Prepared data of a study under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._by_key: dict[str, PreparedSet] = {}

    def get(
        self,
        key: str,
        disks: list[str],
        make: Callable[[dict[str, Path]], None],
        elsewhere: Mapping[str, Path] | None = None,
    ) -> PreparedSet:
        """Data of that key; `make` fills the disks' directories if they do not exist.

        A disk's directory is created under `root`, or under its directory in `elsewhere`. Exceptions of
        `make` propagate, leaving nothing that would count as prepared.
        """
        if key in self._by_key:
            return self._by_key[key]
        place = self.root / key
        if not self.has(key):
            above = {disk: (elsewhere or {}).get(disk, self.root) for disk in disks}
            paths = {disk: above[disk] / key / disk for disk in disks}
            shutil.rmtree(place, ignore_errors=True)
            for path in paths.values():  # a directory outside `root` may have older data
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir(parents=True)
                path.chmod(0o755)
            make(paths)
            record = {
                "disks": {disk: str(path) for disk, path in paths.items()},
                "size_bytes": sum(directory_bytes(p) for p in paths.values()),
                "signature": signature(paths.values()),
                "shape": signature(paths.values(), times=False),
            }
            place.mkdir(parents=True, exist_ok=True)
            (place / _COMPLETE).write_text(json.dumps(record))
        record = json.loads((place / _COMPLETE).read_text())
        directories = {disk: Path(path) for disk, path in record["disks"].items()}
        self._by_key[key] = PreparedSet(
            key, directories, record["size_bytes"], record["signature"], record["shape"]
        )
        return self._by_key[key]

    def forget_if_altered(self, prepared: PreparedSet, contents: bool = False) -> bool:
        """True if the data have changed since they were prepared; then they are prepared again at the next
        use.

        With `contents`, only names and sizes of the files count.
        """
        was = prepared.shape if contents else prepared.signature
        if signature(prepared.disks.values(), times=not contents) == was:
            return False
        self.forget(prepared.key)
        return True

    def forget(self, key: str) -> None:
        """Prepare that data again, in new directories, at the next use."""
        (self.root / key / _COMPLETE).unlink(missing_ok=True)
        self._by_key.pop(key, None)

    @property
    def sizes_bytes(self) -> list[int]:
        """Sizes of the data used so far."""
        return [p.size_bytes for p in self._by_key.values()]

    def has(self, key: str) -> bool:
        """True if that data exist completely."""
        try:
            record = json.loads((self.root / key / _COMPLETE).read_text())
        except (OSError, ValueError):
            return False
        return "shape" in record and all(Path(p).is_dir() for p in record["disks"].values())


def signature(directories: Iterable[Path], times: bool = True) -> str:
    """Hash of names and sizes of all files, and of their modification `times`."""
    digest = hashlib.sha256()
    for directory in directories:
        for top, folders, files in os.walk(directory):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(top, name)
                status = os.lstat(path)
                inside = os.path.relpath(path, directory)
                when = status.st_mtime_ns if times else 0
                digest.update(f"{inside}\0{status.st_size}\0{when}\n".encode())
    return digest.hexdigest()


def copy_tree(source: Path, target: Path) -> None:
    """Copy with all attributes, sharing blocks if the file system supports it (cp --reflink=auto).

    Raises PenstockError with cp's message.
    """
    argv = ["cp", "-a", "--reflink=auto", "--", f"{source}/.", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise PenstockError(f"the prepared data cannot be copied: {done.stderr.strip()}")
