"""A file that is a disk: a file system of its own, on a loop device, mounted for one node."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.emulate.backends.base import Place
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.journal.settings import restore_own
from penstock.host.storage.blockdev import BlockDevice, device_of
from penstock.host.storage.loop import LoopDevice, attach, detach, holders
from penstock.host.storage.mounts import mounts_at, unmount
from penstock.spec.cluster import DiskSpec
from penstock.state import runtime_dir

#: size of a disk that does not say [bytes]; the file is sparse
SIZE_BYTES = 1 << 30
#: smallest that mkfs.ext4 makes something useful of [bytes]
LEAST_BYTES = 8 << 20
#: a device is cleared a moment after its last user has gone [s]
_FREE_WITHIN_S = 3.0
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class ImageDisk:
    """A mounted image and what is in the journal for it, last made last."""

    image: Path
    mount: Path
    device: BlockDevice
    loop: LoopDevice
    journal: Journal
    #: of the mount; what is limited on the device is written down with it
    entry: Entry
    #: of an image that holds a copy of other files and goes with the disk
    _copy: Entry | None = None
    _settings: list[Entry] = field(default_factory=list)

    def down(self) -> None:
        """Unmounts it, lazily when files are open, and lets the loop device go."""
        while self._settings:
            restore_own(self._settings.pop(), self.journal)
        if _is_ours(self.mount, self.entry.token):
            _read_only(self.mount)
            unmount(self.mount)
        self.journal.undone(self.entry)
        detach(self.loop, self.journal)
        _drop(self.image, self._copy, self.journal)


def put_up(disk: DiskSpec, place: Place, journal: Journal) -> ImageDisk:
    """Makes (or finds) the disk's image, sets a loop device up over it and mounts it.

    An image that is there already is used as it is, so that what was synced to it is there again. Where the
    directory holds other files (a study's prepared data), they are copied into an image beside it, which
    goes with the disk: what is changed on the disk is not changed there.
    """
    size = disk.size_bytes or SIZE_BYTES
    if size < LEAST_BYTES:
        raise BadInput(f"disk {disk.name}: found size {size} B; expected {LEAST_BYTES} B or more")
    if any(os.scandir(place.mount)):
        raise BadInput(f"mount point {place.mount} is not empty")
    image, copy = place.directory / f"{disk.name}.ext4", None
    users = _await_free(image)  # a mount that was just taken away may still be on its way
    if users:
        raise PenstockError(
            f"disk {disk.name}: {image} is still used by {', '.join(users)} (a mount of it is left in "
            "another mount namespace, or a file on it is open); mounted twice it would be damaged"
        )
    if not image.exists():
        image, copy = _created(image, size, disk, place, journal)
    try:
        loop = attach(image, journal, run=place.run)
        try:
            mounted = _mount(loop, place, journal)
        except BaseException:
            detach(loop, journal)
            raise
    except BaseException:
        _drop(image, copy, journal)
        raise
    loop.release()  # the mount holds it now, and with the mount it goes
    up = ImageDisk(image, place.mount, device_of(loop.path), loop, journal, mounted, copy)
    try:
        readahead = up.device.queue / "read_ahead_kb"
        _set(up, readahead, str(max(0, disk.readahead_bytes) // 1024), place.run)
        if disk.owner is not None:
            os.chown(place.mount, *disk.owner)
    except BaseException:
        up.down()
        raise
    return up


def _created(
    image: Path, size: int, disk: DiskSpec, place: Place, journal: Journal
) -> tuple[Path, Entry | None]:
    """A new image in the place's directory; or, if that holds files, one beside it with copies of them."""
    own = (".penstock-", f"{image.name}.")
    if all(entry.name.startswith(own) for entry in os.scandir(place.directory)):
        _make(image, size, disk, None)
        return image, None
    token = new_token()
    beside = place.directory.with_name(f"{place.directory.name}.{token}.ext4")
    entry = journal.plan("file", beside, run=place.run, token=token)
    try:
        _make(beside, size, disk, place.directory)
    except BaseException:
        _drop(beside, entry, journal)
        raise
    journal.done(entry)
    return beside, entry


def _drop(image: Path, entry: Entry | None, journal: Journal) -> None:
    if entry is not None:
        image.unlink(missing_ok=True)
        journal.undone(entry)


def _make(image: Path, size: int, disk: DiskSpec, files: Path | None) -> None:
    """Makes the image under another name first: a half-made file system never gets the disk's name."""
    draft = image.with_name(f"{image.name}.{new_token()}")
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is None:
        raise PenstockError("mkfs.ext4 (Debian package e2fsprogs) is not installed")
    try:
        with draft.open("wb") as file:
            file.truncate(size)
        # everything is written now, so that nothing is written in the background of a run
        extended = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
        argv = [mkfs, "-q", "-F", "-m", "0", "-b", "4096", "-E", extended]
        argv += [] if files is None else ["-d", str(files)]
        done = subprocess.run([*argv, str(draft)], capture_output=True, text=True)
        if done.returncode != 0:
            why = done.stderr.strip()[-200:]
            if files is not None and ("No space" in why or "allocate" in why):
                why = f"its {size} bytes do not hold the files of {files}"
            raise PenstockError(f"disk {disk.name}: mkfs.ext4: {why}")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.rename(image)
    finally:
        draft.unlink(missing_ok=True)


def _mount(loop: LoopDevice, place: Place, journal: Journal) -> Entry:
    """Mounts the device by a link that bears our token: mountinfo then names the mount as ours."""
    entry = journal.plan("mount", place.mount, run=place.run)
    link = runtime_dir() / f"penstock:{entry.token}"
    try:
        linked = journal.plan("file", link, run=place.run, token=entry.token)
    except BaseException:
        journal.undone(entry)
        raise
    try:
        link.symlink_to(loop.path)
        source, point = os.fsencode(link), os.fsencode(place.mount)
        if _libc.mount(source, point, b"ext4", _MS_NOSUID | _MS_NODEV, None) != 0:
            error = ctypes.get_errno()
            raise PenstockError(f"mounting {loop.path} at {place.mount}: {os.strerror(error)}")
        journal.done(entry, loop=str(loop.path))
    except BaseException:
        if _is_ours(place.mount, entry.token):
            unmount(place.mount)
        journal.undone(entry)
        raise
    finally:
        link.unlink(missing_ok=True)
        journal.undone(linked)
    with contextlib.suppress(OSError):
        (place.mount / "lost+found").rmdir()
    return entry


def _set(up: ImageDisk, path: Path, value: str, run: str | None) -> None:
    old = path.read_text().strip()
    if old == value:
        return
    entry = up.journal.plan("setting", path, run=run, old=old, new=value)
    up._settings.append(entry)
    path.write_text(value)
    up.journal.done(entry)


def _read_only(point: Path) -> None:
    """Everything to the image, and no more writes, also by mounts that other namespaces have copied."""
    flags = _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if _libc.mount(None, os.fsencode(point), None, flags, None) != 0:  # a file is open for writing
        fd = os.open(point, os.O_RDONLY)
        _libc.syncfs(fd)
        os.close(fd)


def _await_free(image: Path) -> list[str]:
    """Waits a while until no loop device holds the image; gives those that stay."""
    until = time.monotonic() + _FREE_WITHIN_S
    while (users := holders(image)) and time.monotonic() < until:
        time.sleep(0.01)
    return users


def _is_ours(point: Path, token: str) -> bool:
    return any(f"penstock:{token}" in m.source for m in mounts_at(point))
