"""penstock dedup on the command line: output, refusals, and undo after the death of a server."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.host.storage.mounts import mounts_at
from tests.integration.dedup_ground import HOST, content_of
from tests.support import commands
from tests.support.waiting import wait_for_end

pytestmark = HOST


@dataclass
class Command:
    """penstock with a separate state directory, a store and a mount point."""

    base: Path

    def __call__(self, *argv: Any, status: int = 0, verb: str = "dedup") -> str:
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(self.base / "state"),
            "PENSTOCK_RUNTIME": str(self.base / "run"),
        }
        command = [sys.executable, "-m", "penstock", verb, *map(str, argv)]
        result = commands.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == status, result.stderr
        return result.stdout if status != 2 else result.stderr

    def json(self, *argv: Any, status: int = 0) -> Any:
        return json.loads(self(*argv, "--json", status=status))

    @property
    def store(self) -> Path:
        return self.base / "store"

    @property
    def mount(self) -> Path:
        return self.base / "mount"


@pytest.fixture
def dedup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    command = Command(tmp_path_factory.mktemp("cli"))
    command.store.mkdir()
    command.mount.mkdir()
    yield command
    command("--all", verb="undo")
    assert not mounts_at(command.mount)


def test_a_mount_outlives_its_command(dedup: Command) -> None:
    mounted = dedup.json("mount", dedup.store, dedup.mount, "-c", "fixed:64KiB")
    assert mounted["mount"] == str(dedup.mount)
    generated = dedup.json(
        *("generate", dedup.mount, "--size", "1MiB", "-n", "3", "-z", "75%", "-q")
    )
    similarities = [version["similarity"] for version in generated["versions"]]
    assert similarities == [None, 0.75, 0.75]
    status = dedup.json("status", dedup.mount)
    usage = status["usage"]
    assert (usage["files"], usage["logical_bytes"]) == (3, 3 << 20)
    assert (usage["chunks"], usage["stored_bytes"]) == (24, 24 << 16)
    assert usage["families"]["version.#"]["unique_bytes"] == 24 << 16
    assert [row["similar_chunks"] for row in status["mount"]["records"]] == [0, 12, 12]
    assert "ratio 2.0" in dedup("status", dedup.mount)
    assert "fixed:65536" in dedup("status")
    assert dedup.json("set", dedup.mount, "-c", "off", "--hash", "sha256") == {
        "chunking": "off",
        "hash": "sha256",
    }
    (dedup.mount / "version.0003").unlink()
    assert dedup.json("gc", dedup.mount)["removed_chunks"] == 4
    assert "0 files damaged" in dedup("verify", dedup.store)
    dedup("unmount", dedup.mount)
    assert not mounts_at(dedup.mount)
    assert dedup.json("status") == {"mounts": [], "dead": []}
    assert "Nothing to undo" in dedup(verb="undo")
    # the store can be examined without a mount
    assert dedup.json("status", dedup.store)["usage"]["files"] == 2
    assert dedup.json("gc", dedup.store)["removed_chunks"] == 0


def test_damage_is_exit_status_1(dedup: Command) -> None:
    dedup("mount", dedup.store, dedup.mount)
    for name in ("a", "b"):
        (dedup.mount / name).write_bytes(content_of(100_000, ord(name)))
    dedup("unmount", dedup.mount)
    os.truncate(dedup.store / "files" / "b", 60)
    result = dedup.json("verify", dedup.store, status=1)
    assert [path for path, _ in result["damaged"]] == ["b"]
    assert "b: map " in dedup("verify", dedup.store, status=1)
    dedup("gc", dedup.store, status=1)


def test_undo_removes_the_mount_of_a_dead_server(dedup: Command) -> None:
    pid = dedup.json("mount", dedup.store, dedup.mount)["pid"]
    (dedup.mount / "f").write_bytes(b"committed")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    dead = dedup.json("status", status=1)
    assert dead["dead"] == [str(dedup.mount)]
    dedup(verb="undo")
    assert not mounts_at(dedup.mount)
    dedup("mount", dedup.store, dedup.mount)
    assert (dedup.mount / "f").read_bytes() == b"committed"
    dedup("unmount", dedup.mount)


def test_a_server_ended_by_a_signal_leaves_nothing(dedup: Command) -> None:
    pid = dedup.json("mount", dedup.store, dedup.mount)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_for_end(pid)
    assert not mounts_at(dedup.mount)
    assert "Nothing to undo" in dedup(verb="undo")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("mount", "STORE", "NONE"), "mount point: found no directory"),
        (("mount", "STORE", "MOUNT", "-c", "fixed:1"), "expected off, fixed:SIZE"),
        (("mount", "STORE", "MOUNT", "--hash", "md5"), "hash: found 'md5'; expected blake3"),
        (("mount", "STORE", "MOUNT", "--family", "("), "family: found"),
        (("set", "MOUNT"), "expected --chunking or --hash"),
        (("unmount", "MOUNT"), "found no deduplicating mount"),
        (("gc", "STORE"), "found no store"),
        (("verify", "NONE"), "found no directory"),
        (("generate", "MOUNT", "-z", "120%"), "similarity: found"),
        (("generate", "MOUNT", "--size", "big"), "size: found 'big'; expected"),
        (("generate", "MOUNT", "--preset", "none"), "preset: found 'none'; expected checkpoint"),
        (("compare", "NONE", "NONE"), "found no file"),
    ],
)
def test_bad_input_is_exit_status_2(dedup: Command, argv: tuple[str, ...], message: str) -> None:
    places = {"STORE": dedup.store, "MOUNT": dedup.mount, "NONE": dedup.base / "none"}
    assert message in dedup(*(places.get(word, word) for word in argv), status=2)
    assert list(dedup.store.iterdir()) == []
