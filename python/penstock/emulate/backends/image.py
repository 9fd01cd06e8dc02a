"""Disks as image files: a file system on a loop device, mounted for one node."""

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

#: default size of a disk [bytes]; the file is sparse
SIZE_BYTES = 1 << 30
#: smallest useful size for mkfs.ext4 [bytes]
LEAST_BYTES = 8 << 20
#: longest time until the kernel clears a device after its last user [s]
_FREE_WITHIN_S = 3.0
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class ImageDisk:
    """A mounted image and its journal entries, in order of creation."""

    image: Path
    mount: Path
    device: BlockDevice
    loop: LoopDevice
    journal: Journal
    #: entry of the mount; limits of the device are recorded with it
    entry: Entry
    #: entry of an image with copies of other files, removed with the disk
    _copy: Entry | None = None
    _settings: list[Entry] = field(default_factory=list)

    def down(self) -> None:
        """Unmount it, lazily if files are open, and release the loop device."""
        while self._settings:
            restore_own(self._settings.pop(), self.journal)
        if _is_ours(self.mount, self.entry.token):
            _read_only(self.mount)
            unmount(self.mount)
        self.journal.undone(self.entry)
        detach(self.loop, self.journal)
        _drop(self.image, self._copy, self.journal)


def put_up(disk: DiskSpec, place: Place, journal: Journal) -> ImageDisk:
    """Create or reuse the disk's image, attach a loop device and mount it.

    An existing image is used unchanged, so synced data persist. If the directory holds other files (a study's
    prepared data), they are copied into a separate image that is removed with the disk, so changes on the
    disk do not reach the originals.
    """
    size = disk.size_bytes or SIZE_BYTES
    if size < LEAST_BYTES:
        raise BadInput(f"disk {disk.name}: found size {size} B; expected {LEAST_BYTES} B or more")
    if any(os.scandir(place.mount)):
        raise BadInput(f"mount point {place.mount} is not empty")
    image, copy = place.directory / f"{disk.name}.ext4", None
    users = _await_free(image)  # a recent unmount may still be in progress
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
    loop.release()  # the mount owns it now
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
    """A new image in the place's directory; if that has files, a separate one with copies of them."""
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
    """Create the image under a temporary name, so that an incomplete one never gets the disk's name."""
    draft = image.with_name(f"{image.name}.{new_token()}")
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if mkfs is None:
        raise PenstockError("mkfs.ext4 (Debian package e2fsprogs) is not installed")
    try:
        with draft.open("wb") as file:
            file.truncate(size)
        # write everything now, so that no background writes happen in a run
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
    """Mount the device by a link with our token, so that mountinfo identifies the mount as ours."""
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
    """Flush the image and stop writes, also through copies of the mount in other namespaces."""
    flags = _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if _libc.mount(None, os.fsencode(point), None, flags, None) != 0:  # a file is open for writing
        fd = os.open(point, os.O_RDONLY)
        _libc.syncfs(fd)
        os.close(fd)


def _await_free(image: Path) -> list[str]:
    """Wait until no loop device uses the image; returns the remaining ones."""
    until = time.monotonic() + _FREE_WITHIN_S
    while (users := holders(image)) and time.monotonic() < until:
        time.sleep(0.01)
    return users


def _is_ours(point: Path, token: str) -> bool:
    return any(f"penstock:{token}" in m.source for m in mounts_at(point))
