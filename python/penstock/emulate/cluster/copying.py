"""Copies of files and directories between this host and nodes, like cp(1), by means of tar(1)."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from penstock.emulate.cluster.cluster import RunningNode
from penstock.emulate.cluster.running_cluster import RunningCluster
from penstock.errors import BadInput, PenstockError

_PATIENCE_S = 3600.0


def copy(cluster: RunningCluster, source: str, target: str) -> list[str]:
    """Copy SOURCE to TARGET, one of which is NODE:PATH; returns the nodes. In a target NODE may be a pattern.

    As cp does: into the target if it is a directory, else under its name. Owners are not preserved.
    Raises BadInput for contradictory arguments, PenstockError if a file cannot be read or written.
    """
    from_node, to_node = _place(source), _place(target)
    if (from_node is None) == (to_node is None):
        raise BadInput(f"found {source} and {target}; expected one of them to be NODE:PATH")
    if to_node is not None:
        return _into(cluster.chosen([to_node[0]]), Path(source), to_node[1])
    assert from_node is not None
    nodes = cluster.chosen([from_node[0]])
    if len(nodes) > 1:
        raise BadInput(f"{source}: found {len(nodes)} nodes; expected one to copy from")
    _out_of(nodes[0], from_node[1], Path(target))
    return [nodes[0].name]


def _place(text: str) -> tuple[str, str] | None:
    """Node and path of `n-1:/data/f`; None for a path of this host (such as `./a:b`)."""
    node, colon, path = text.partition(":")
    if not colon or "/" in node or not node:
        return None
    if not path.startswith("/"):
        raise BadInput(f"{text}: found the path {path!r}; expected one from / on")
    return node, path


def _into(nodes: list[RunningNode], source: Path, target: str) -> list[str]:
    if not source.exists():
        raise BadInput(f"{source}: found nothing; expected a file or a directory")
    places: dict[tuple[str, str], list[RunningNode]] = {}
    for node in nodes:
        inside = node.run(["test", "-d", target]).exit_status == 0
        where = target if inside else str(PurePosixPath(target).parent)
        name = source.resolve().name if inside else PurePosixPath(target).name
        places.setdefault((where, name), []).append(node)
    for (where, name), alike in places.items():
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as tar:
                tar.add(source, arcname=f"./{name}")
            for node in alike:
                packed.seek(0)
                argv = ["tar", "-x", "--no-same-owner", "-C", where, "-f", "-"]
                _run(node, argv, f"{node.name}:{target} cannot be written", stdin=packed)
    return [node.name for node in nodes]


def _out_of(node: RunningNode, source: str, target: Path) -> None:
    path = PurePosixPath(source)
    final = target / path.name if target.is_dir() else target
    if final.is_dir():
        raise BadInput(f"{final}: found a directory; expected another place, or nothing there")
    if not final.parent.is_dir():
        raise BadInput(f"{final.parent}: found no directory; expected one for {final.name}")
    with (
        tempfile.TemporaryFile() as packed,
        tempfile.TemporaryDirectory(dir=final.parent, prefix=".penstock-") as beside,
    ):
        argv = ["tar", "-c", "-C", str(path.parent), "-f", "-", "--", path.name]
        _run(node, argv, f"{node.name}:{source} cannot be read", stdout=packed)
        packed.seek(0)
        try:
            with tarfile.open(fileobj=packed) as tar:
                tar.extractall(beside, filter="data")  # refuses paths outside
        except tarfile.TarError as error:
            raise PenstockError(f"{node.name}:{source} cannot be copied: {error}") from None
        os.replace(Path(beside, path.name), final)


def _run(
    node: RunningNode,
    argv: list[str],
    trouble: str,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
) -> None:
    with tempfile.TemporaryFile() as err:
        done = node.run(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout or os.devnull,
            stderr=err,
            timeout_s=_PATIENCE_S,
        )
        err.seek(0)
        message = err.read(2000).decode(errors="replace").strip()
    if done.exit_status:
        raise PenstockError(f"{trouble}: {message or f'status {done.exit_status}'}")
