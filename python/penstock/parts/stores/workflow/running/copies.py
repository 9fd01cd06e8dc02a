"""Verified copies of many files between this host and a store, some hundred per archive (tar(1))."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.staging import Staged, compared
from penstock.parts.stores.store import Store
from penstock.writing import sync

#: most files and bytes of one archive
_FILES, _BYTES = 200, 1 << 30
_PATIENCE_S = 3600.0

Heard = Callable[[int, int], None]


def copy_in(store: Store, pairs: Mapping[str, Path], node: str, heard: Heard) -> list[Staged]:
    """Copy files of this host to paths of the store, and compare them by SHA-256.

    PenstockError for a file that differs, or that does not fit.
    """
    running, mount, staged = store.client(node), store.spec.mount, list[Staged]()
    for group in _groups({path: source.stat().st_size for path, source in pairs.items()}):
        with tempfile.TemporaryFile() as packed:
            # hard links among the inputs are separate files in the store
            with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
                for path in group:
                    info = tar.gettarinfo(pairs[path].resolve(), str(PurePosixPath(path)))
                    info.name = str(PurePosixPath(path).relative_to(mount))
                    info.mode, info.uid, info.gid = (info.mode & 0o777) | 0o600, 0, 0
                    with open(pairs[path], "rb") as file:
                        tar.addfile(info, file)
            packed.seek(0)
            # existing files are overwritten in place: they have hints
            argv = ["tar", "-x", "--overwrite", "--no-same-owner", "-C", mount, "-f", "-"]
            _tar(running, argv, "the inputs cannot be written", stdin=packed.fileno())
        staged += compared(store, {path: pairs[path] for path in group}, node)
        heard(len(staged), len(pairs))
    return staged


def copy_out(
    store: Store, pairs: Mapping[str, Path], node: str | None, heard: Heard
) -> list[Staged]:
    """Copy files of the store to paths of this host, durable, and compare them by SHA-256."""
    running, mount, staged = store.client(node), store.spec.mount, list[Staged]()
    sizes = {path: (store.files(node).kind(path) or ("", 0))[1] for path in pairs}
    for group in _groups(sizes):
        for path in group:
            pairs[path].parent.mkdir(parents=True, exist_ok=True)
        directory = pairs[group[0]].parent
        with (
            tempfile.TemporaryFile(dir=directory) as packed,
            tempfile.TemporaryDirectory(dir=directory, prefix=".penstock-") as draft,
        ):
            names = [str(PurePosixPath(path).relative_to(mount)) for path in group]
            argv = ["tar", "-c", "-h", "-C", mount, "-f", "-", "--", *names]
            _tar(running, argv, "the results cannot be read", stdout=packed.fileno())
            packed.seek(0)
            try:
                with tarfile.open(fileobj=packed) as tar:
                    tar.extractall(draft, filter="data")  # refuses paths outside
            except (tarfile.TarError, OSError) as error:
                raise PenstockError(f"the results cannot be copied: {error}") from None
            for path, name in zip(group, names, strict=True):
                if pairs[path].is_dir():
                    raise BadInput(f"{pairs[path]}: found a directory; expected a file, or nothing")
                sync(Path(draft, name))
                os.replace(Path(draft, name), pairs[path])
        staged += compared(store, {path: pairs[path] for path in group}, node)
        heard(len(staged), len(pairs))
    return staged


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Paths in groups of limited number and bytes."""
    group, total = list[str](), 0
    for path, size in sizes.items():
        if group and (len(group) == _FILES or total + size > _BYTES):
            yield group
            group, total = [], 0
        group.append(path)
        total += size
    if group:
        yield group


def _tar(
    node: RunningNode,
    argv: list[str],
    trouble: str,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> None:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            node.enter(argv), stdin=stdin, stdout=stdout, stderr=errors, start_new_session=True
        )
        try:
            status = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise PenstockError(f"{node.name}: {trouble}: it took too long") from None
        finally:
            if process.returncode is None:  # with the command, a child of `penstock-enter`
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        message = errors.read(2000).decode(errors="replace").strip()
    if status:
        raise PenstockError(f"{node.name}: {trouble}: {message or f'status {status}'}")
