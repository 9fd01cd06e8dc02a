"""A deduplicating mount: file operations, versions, similar chunks and damage."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.parts.dedup.mounts import find, unmount
from penstock.parts.dedup.versions import VersionPlan, write_versions
from tests.integration.dedup_ground import (  # noqa: F401 - a fixture
    HOST,
    Ground,
    content_of,
    ground,
    records,
)

pytestmark = HOST

CONFIGURATIONS = ("off", "fixed:4KiB", "fastcdc:1KiB,4KiB,16KiB", "seqcdc:1KiB,4KiB,16KiB")
MIB = 1 << 20


def test_a_mount_behaves_as_a_file_system(ground: Ground, tmp_path: Path) -> None:  # noqa: F811
    ground.mount()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "large").write_bytes(content_of(3 * MIB, 1))
    (tree / "a" / "empty").touch(mode=0o640)
    (tree / "link").symlink_to("a/b/large")
    os.utime(tree / "a" / "empty", ns=(10**18 + 1, 10**18 + 2))
    copy = ground.point / "tree"
    subprocess.run(["cp", "-a", tree, copy], check=True)
    subprocess.run(["diff", "-r", tree, copy], check=True)
    facts = (copy / "a" / "empty").stat()
    assert (facts.st_mode & 0o7777, facts.st_mtime_ns, facts.st_size) == (0o640, 10**18 + 2, 0)
    assert os.readlink(copy / "link") == "a/b/large"
    packed = tmp_path / "tree.tar"
    subprocess.run(["tar", "-C", copy, "-cf", packed, "."], check=True)
    subprocess.run(["tar", "-C", tree, "--compare", "-f", packed], check=True)
    (copy / "a" / "b").rename(copy / "c")
    os.replace(copy / "c" / "large", copy / "a" / "empty")
    assert (copy / "a" / "empty").read_bytes() == content_of(3 * MIB, 1)
    with pytest.raises(OSError, match="not empty"):
        (copy / "a").rmdir()
    with pytest.raises(PermissionError):
        os.link(copy / "a" / "empty", copy / "other")
    shutil.rmtree(copy)
    assert list(ground.point.iterdir()) == []
    free = os.statvfs(ground.point).f_bavail
    assert free > 0


@pytest.mark.parametrize("chunking", CONFIGURATIONS)
def test_random_writes_give_the_content_of_a_plain_file(
    ground: Ground,  # noqa: F811
    tmp_path: Path,
    chunking: str,
) -> None:
    ground.mount(chunking=chunking)
    draws = random.Random(chunking)
    plain, stored = tmp_path / "plain", ground.point / "stored"
    for path in (plain, stored):
        path.touch()
    for step in range(60):
        mode = draws.choice(["r+b", "r+b", "ab", "wb"])
        actions = [
            (draws.choice(["write", "write", "read", "cut", "sync"]), draws.randrange(300_000))
            for _ in range(draws.randrange(1, 8))
        ]
        reads = []
        for path in (plain, stored):
            seen = []
            with open(path, mode, buffering=0) as file:
                for number, (action, at) in enumerate(actions):
                    if action == "write":
                        file.seek(at)
                        file.write(content_of(at % 90_000, 1000 * step + number))
                    elif action == "cut":
                        file.truncate(at)
                    elif action == "sync":
                        os.fsync(file)
                    elif mode == "r+b":
                        file.seek(at)
                        seen.append(file.read(50_000))
                seen.append(str(os.fstat(file.fileno()).st_size).encode())
            reads.append([*seen, path.read_bytes()])
        assert reads[0] == reads[1], (step, mode, actions)
    ground.remount(chunking="off")
    assert stored.read_bytes() == plain.read_bytes()


def test_a_reader_has_one_version(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    path = ground.point / "f"
    old, new = content_of(2 * MIB, 1), content_of(3 * MIB, 2)
    path.write_bytes(old)
    with open(path, "rb", buffering=0) as before, open(path, "wb", buffering=0) as writer:
        writer.write(new[:MIB])
        assert path.read_bytes() == old
        assert before.read(MIB) == old[:MIB]
        writer.write(new[MIB:])
        os.fsync(writer)
        assert path.read_bytes() == new
        assert before.read() == old[MIB:]
        path.unlink()
        ground.collect()
        before.seek(0)
        assert before.read() == old
    assert not path.exists()
    ground.collect()
    assert ground.chunks() == []


def test_a_mapped_file_can_be_changed(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    path = ground.point / "f"
    path.write_bytes(bytes(MIB))
    with open(path, "r+b") as file:
        try:
            pages = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            pytest.skip(f"this kernel maps no files with direct I/O: {error}")
        pages[4000:4100] = b"x" * 100
        pages.flush()
        pages.close()
    expected = bytearray(MIB)
    expected[4000:4100] = b"x" * 100
    assert path.read_bytes() == bytes(expected)


def test_attributes_outlast_new_versions(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    path = ground.point / "f"
    path.write_bytes(b"1")
    try:
        os.setxattr(path, "user.penstock.Replication", b"3")
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")
    os.chmod(path, 0o604)
    os.chown(path, 7, 8)
    path.write_bytes(b"22")
    ground.remount()
    facts = path.stat()
    assert (facts.st_mode & 0o7777, facts.st_uid, facts.st_gid) == (0o604, 7, 8)
    assert os.getxattr(path, "user.penstock.Replication") == b"3"
    assert os.listxattr(path) == ["user.penstock.Replication"]
    os.removexattr(path, "user.penstock.Replication")
    with pytest.raises(OSError, match="No data"):
        os.getxattr(path, "user.penstock.Replication")


def test_permissions_are_those_of_the_caller(ground: Ground) -> None:  # noqa: F811
    with tempfile.TemporaryDirectory() as directory:  # others cannot traverse pytest's directories
        os.chmod(directory, 0o755)
        passable = Ground(Path(directory, "store"), Path(directory, "mount"))
        for path in (passable.store, passable.point):
            path.mkdir(mode=0o755)
        passable.mount()
        try:
            _assert_permissions_of_another_user(passable)
        finally:
            passable.unmount()


def _assert_permissions_of_another_user(ground: Ground) -> None:  # noqa: F811
    public, secret = ground.point / "public", ground.point / "secret"
    for path, mode in ((public, 0o644), (secret, 0o600)):
        path.write_bytes(b"x")
        path.chmod(mode)
    run = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert subprocess.run([*run, "cat", public], capture_output=True).stdout == b"x"
    for argv in (["cat", secret], ["ls", ground.store]):
        denied = subprocess.run([*run, *argv], capture_output=True, text=True)
        assert "Permission denied" in denied.stderr


@pytest.mark.parametrize("hash_name", ["blake3", "sha256"])
def test_only_new_chunks_are_sent(ground: Ground, hash_name: str) -> None:  # noqa: F811
    served = ground.mount(chunking="fixed:16KiB", hash=hash_name)
    plan = VersionPlan(4 * MIB, 4, (0.75, 0.75), chunk_bytes=16 << 10)
    written = list(write_versions(plan, ground.point, "ckpt"))
    rows = records(served, 4)
    assert [row["similar_chunks"] for row in rows] == [0, 192, 192, 192]
    assert [row["chunks"] for row in rows] == [256] * 4
    assert {row["family"] for row in rows} == {"ckpt.#"}
    assert all(0 < row["send_s"] + row["hash_s"] <= row["duration_s"] for row in rows)
    assert len(ground.chunks()) == 256 + 3 * 64
    # versions that were written before the mount count, too
    remounted = ground.remount(chunking="fixed:16KiB", hash=hash_name)
    shutil.copy(written[-1].path, ground.point / "ckpt.0005")
    assert records(remounted, 1)[0]["similar_chunks"] == 256


def test_scope(ground: Ground) -> None:  # noqa: F811
    content = content_of(MIB, 1)
    for scope, similar in (("family", 0), ("global", 16)):
        served = ground.mount(chunking="fixed:64KiB", scope=scope)
        (ground.point / f"{scope}-a").write_bytes(content)
        (ground.point / f"{scope}-b").write_bytes(content)
        assert records(served, 2)[1]["similar_chunks"] == similar
        ground.unmount()
    served = ground.mount(chunking="fixed:64KiB", family="^[a-z]+")
    for name in ("x.log", "y.log"):
        (ground.point / name).write_bytes(content)
    assert records(served, 2)[1]["similar_chunks"] == 16


def test_all_versions_are_identical_while_the_configuration_toggles(ground: Ground) -> None:  # noqa: F811
    served = ground.mount()
    draws = random.Random(1)
    content = bytearray(content_of(100_000, 1))
    versions: dict[str, bytes] = {}
    for number in range(1000):
        served.change(
            chunking=CONFIGURATIONS[number % len(CONFIGURATIONS)],
            hash_name=("blake3", "sha256")[number // 7 % 2],
        )
        at = draws.randrange(len(content))
        if number % 3:
            content[at : at + 500] = content_of(500, number)
        else:
            content[at:at] = b"inserted"
        name = f"v{number % 40:02d}"
        versions[name] = bytes(content)
        (ground.point / name).write_bytes(content)
        if number % 100 == 50:
            ground.collect()
    for name, expected in versions.items():
        assert (ground.point / name).read_bytes() == expected, name
    ground.collect()
    ground.remount(chunking="off")
    for name, expected in versions.items():
        assert (ground.point / name).read_bytes() == expected, name
    assert ground.verify().damaged_files == 0


def test_concurrent_writers_of_a_family(ground: Ground) -> None:  # noqa: F811
    ground.mount(chunking="seqcdc:1KiB,4KiB,16KiB")
    errors: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for number in range(15):
                # half of the content is that of all workers
                content = content_of(200_000, number) + content_of(200_000, 1000 + worker)
                path = ground.point / f"part.{worker}"
                path.write_bytes(content)
                assert path.read_bytes() == content
                if number % 5 == 4:
                    path.unlink()
                    path.write_bytes(content)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        ground.collect()
    for worker in workers:
        worker.join()
    assert not errors
    for number in range(6):
        expected = content_of(200_000, 14) + content_of(200_000, 1000 + number)
        assert (ground.point / f"part.{number}").read_bytes() == expected
    assert ground.verify().damaged_files == 0
    before = len(ground.chunks())
    result = ground.collect()
    assert len(ground.chunks()) == before - result.removed_chunks
    assert ground.collect().removed_chunks == 0
    assert ground.verify().damaged_files == 0


def test_a_shared_chunk_outlasts_one_of_its_files(ground: Ground) -> None:  # noqa: F811
    ground.mount(chunking="fixed:64KiB", scope="global")
    content = content_of(MIB, 1)
    for name in ("a", "b"):
        (ground.point / name).write_bytes(content)
    (ground.point / "a").unlink()
    assert ground.collect().removed_chunks == 0
    assert (ground.point / "b").read_bytes() == content
    (ground.point / "b").unlink()
    assert ground.collect().removed_chunks == 16


@pytest.mark.parametrize("chunking", ["off", "fixed:64KiB"])
@pytest.mark.parametrize("damage", ["changed", "shortened", "missing"])
def test_a_damaged_chunk_is_reported_and_never_returned(
    ground: Ground,  # noqa: F811
    chunking: str,
    damage: str,
) -> None:
    ground.mount(chunking=chunking, scope="global")
    path, content = ground.point / "f", content_of(MIB, 1)
    path.write_bytes(content)
    (ground.point / "other").write_bytes(b"other")
    chunk = max(ground.chunks(), key=lambda chunk: chunk.stat().st_size)
    if damage == "changed":
        with open(chunk, "r+b") as file:
            file.seek(1000)
            byte = file.read(1)
            file.seek(1000)
            file.write(bytes([byte[0] ^ 1]))
    elif damage == "shortened":
        os.truncate(chunk, 100)
    else:
        chunk.unlink()
    with pytest.raises(OSError, match="Input/output") as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    result = ground.verify()
    assert (result.maps, result.damaged_files) == (2, 1)
    assert result.damaged[0][0] == "f"
    assert chunk.name in result.damaged[0][1]
    # the same content, written once more, repairs it
    (ground.point / "g").write_bytes(content)
    assert (ground.point / "g").read_bytes() == content
    if chunking != "off":
        assert path.read_bytes() == content


@pytest.mark.parametrize("length", [0, 20, 100, -1])
def test_a_truncated_map_is_reported_and_protects_all_chunks(ground: Ground, length: int) -> None:  # noqa: F811
    ground.mount()
    path, content = ground.point / "f", content_of(MIB, 1)
    path.write_bytes(content)
    (ground.point / "removed").write_bytes(content_of(MIB, 2))
    (ground.point / "removed").unlink()
    stored = ground.store / "files" / "f"
    os.truncate(stored, length if length >= 0 else stored.stat().st_size - 1)
    with pytest.raises(OSError, match="Input/output"):
        path.read_bytes()
    with pytest.raises(OSError, match="Input/output"), open(path, "ab"):
        pass
    before = ground.chunks()
    assert ground.verify().damaged_files == 1
    with pytest.raises(PenstockError, match=r"map .*/f is damaged"):
        ground.collect()
    assert ground.chunks() == before
    path.write_bytes(content)
    assert path.read_bytes() == content
    assert ground.collect().removed_chunks > 0
    assert ground.verify().damaged_files == 0


def test_a_store_in_use_is_not_collected_by_others(ground: Ground) -> None:  # noqa: F811
    from penstock.parts.dedup.options import native

    ground.mount()
    with pytest.raises(ValueError, match="is used by process"):
        native.dedup_store(str(ground.store), "collect", "x")
    ground.unmount()
    native.dedup_store(str(ground.store), "collect", "x")


def test_a_client_without_its_registration_commits_nothing(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    path = ground.point / "f"
    path.write_bytes(b"old")
    for client in (ground.store / "clients").iterdir():
        client.unlink()
    with pytest.raises(OSError, match="Input/output"), open(path, "wb") as file:
        file.write(b"new")
    ground.remount()
    assert path.read_bytes() == b"old"


def test_unsuitable_directories_are_refused(ground: Ground, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "file").touch()
    for store, message in ((tmp_path, "found files"), (tmp_path / "no", "found no directory")):
        with pytest.raises(PenstockError, match=message):
            Ground(store, ground.point).mount()
    with pytest.raises(BadInput, match="family: found"):
        ground.mount(family="(")
    ground.mount()
    with pytest.raises(BadInput, match="found a deduplicating mount"):
        Ground(tmp_path, ground.point).mount()
    assert find(ground.store).mount == ground.point
    command = subprocess.Popen(["sleep", "60"], cwd=ground.point)
    try:
        with pytest.raises(PenstockError, match="in use by"):
            unmount(ground.point)
    finally:
        command.kill()
        command.wait()
    ground.unmount()
    with pytest.raises(BadInput, match="found no deduplicating mount"):
        find(ground.point)


def test_the_controller_chooses_for_each_version(ground: Ground) -> None:  # noqa: F811
    served = ground.mount(chunking="auto", configurations=("off", "fixed:16KiB"))
    plan = VersionPlan(2 * MIB, 12, (1.0, 1.0), chunk_bytes=16 << 10)
    list(write_versions(plan, ground.point, overwrite=True))
    rows = records(served, 12)
    assert {row["configuration"] for row in rows} <= {"off", "fixed:16384"}
    assert rows[0]["configuration"] == "fixed:16384"
    assert (ground.point / "version").stat().st_size == 2 * MIB
