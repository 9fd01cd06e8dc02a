"""Kernels and initial RAM disks of virtual machines: a Debian kernel, busybox, and programs of this host.

The kernel is the newest of its Debian release. It is downloaded once with apt-get and unpacked to a cache,
not installed. A RAM disk is built once for each content.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NEEDED_PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "zstd", "depmod", "modprobe")
KERNEL_PACKAGE = "linux-image-cloud-amd64"
#: keys of the archives of all Debian releases that are still served
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: search path of programs
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
#: kernel modules of every guest
BASE_MODULES = ("virtio_pci", "virtio_blk")

#: first lines of every init script
BASE_INIT = """#!/bin/sh
export PATH=/bin HOME=/root
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev 2>/dev/null
mount -t tmpfs t /run; mount -t tmpfs t /tmp
mount -t cgroup2 c /sys/fs/cgroup; mount -t tracefs t /sys/kernel/tracing
modprobe virtio_pci; modprobe virtio_blk
"""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package: its release and directory."""

    release: str
    tree: Path

    @property
    def image(self) -> Path:
        """Path of the compressed kernel."""
        return self.tree / "boot" / f"vmlinuz-{self.release}"


def cache_dir() -> Path:
    """The cache directory of kernels and RAM disks, created if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "penstock" / "guest"
    path.mkdir(parents=True, exist_ok=True)
    return path


def missing() -> list[str]:
    """Programs that a guest needs and this host lacks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [p for p in NEEDED_PROGRAMS if shutil.which(p, path=path) is None]


def kernel(suite: str = "") -> Kernel:
    """The newest cloud kernel of this host's Debian release, or of another `suite`; downloaded once.

    Raises LookupError if apt cannot download it.
    """
    options = _apt_of(suite) if suite else []
    package = _newest(options)
    if package is None or not _unpacked(package):
        with _alone(), tempfile.TemporaryDirectory(dir=cache_dir()) as work:
            try:
                if suite:
                    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
                    package = _newest(options)
                # another process may have unpacked it in the meantime and be reading it
                missing_here = package is None or not _unpacked(package)
                if missing_here:
                    subprocess.run(
                        ["apt-get", *options, "-qq", "download", str(package)], cwd=work, check=True
                    )
            except subprocess.CalledProcessError as error:
                raise LookupError(
                    f"{KERNEL_PACKAGE} of {suite or 'this Debian'}: {error}"
                ) from None
            if missing_here:
                _unpack(next(Path(work).glob("*.deb")), cache_dir() / str(package))
    release = str(package).removeprefix("linux-image-")
    return Kernel(release, cache_dir() / str(package))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of the cache."""
    with open(cache_dir() / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _apt_of(suite: str) -> list[str]:
    """Options that restrict apt to `suite`, from the archives that this host uses.

    The package lists go to the cache. The installed packages are neither read nor changed.
    """
    own = platform.freedesktop_os_release()["VERSION_CODENAME"]
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    archives = sorted({(uri, of) for uri, of in map(str.split, targets.splitlines())})
    lines = [
        f"deb [signed-by={KEYRING}] {uri} {of.replace(own, suite)} main\n"
        for uri, of in archives
        if of in (own, f"{own}-security")
    ]
    place = cache_dir() / suite
    (place / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text("".join(lines))
    settings = {
        "Dir::Etc::SourceList": place / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": place / "lists",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": place,
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    return [option for name, value in settings.items() for option in ("-o", f"{name}={value}")]


def _newest(options: list[str]) -> str | None:
    """The package that the kernel's metapackage depends on; None if the lists do not have it."""
    depends = subprocess.run(
        ["apt-cache", *options, "depends", KERNEL_PACKAGE], capture_output=True, text=True
    ).stdout
    lines = (x for x in depends.splitlines() if "Depends:" in x and "linux-image" in x)
    return next((line.split()[-1] for line in lines), None)


def _unpacked(package: str) -> bool:
    image = f"vmlinuz-{package.removeprefix('linux-image-')}"
    return (cache_dir() / package / "boot" / image).is_file()


def _unpack(archive: Path, tree: Path) -> None:
    unpacked = archive.parent / "x"
    subprocess.run(["dpkg", "-x", archive, unpacked], check=True)
    if not (unpacked / "lib").exists():
        (unpacked / "lib").symlink_to("usr/lib")
    _run_admin(["depmod", "-b", str(unpacked), tree.name.removeprefix("linux-image-")])
    shutil.rmtree(tree, ignore_errors=True)
    unpacked.rename(tree)


def _run_admin(argv: list[str]) -> str:
    env = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout


def ram_disk(
    machine_kernel: Kernel, programs: Sequence[str], modules: Sequence[str], init: str
) -> Path:
    """Build the initial RAM disk of `programs` (names on PATH), their libraries, `modules` and `init`.

    Raises FileNotFoundError with the name of a program that this host lacks.
    """
    key = hashlib.sha256(
        "\n".join([machine_kernel.release, init, *modules, *programs]).encode()
    ).hexdigest()[:12]
    image = cache_dir() / f"initrd-{machine_kernel.release}-{key}.zst"
    if image.is_file():
        return image
    with tempfile.TemporaryDirectory(dir=cache_dir()) as work:
        root = Path(work) / "root"
        _fill(root, machine_kernel, programs, modules, init)
        part = Path(work) / "initrd"
        find = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
        packed = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=root,
            input=find,
            capture_output=True,
            check=True,
        ).stdout
        compressed = subprocess.run(
            ["zstd", "-q", "-1"], input=packed, capture_output=True, check=True
        )
        part.write_bytes(compressed.stdout)
        part.rename(image)
    return image


def _fill(
    root: Path, machine_kernel: Kernel, programs: Sequence[str], modules: Sequence[str], init: str
) -> None:
    for name in "bin dev proc sys run tmp root etc usr job out lib64".split():
        (root / name).mkdir(parents=True)
    (root / "sbin").symlink_to("bin")
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    for applet in applets.split():
        target = root / "bin" / applet
        if not target.exists():
            target.symlink_to("busybox")
    for program in programs:
        path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if path is None:
            raise FileNotFoundError(program)
        _carry(root, Path(path).resolve(), root / "bin" / Path(program).name)
    _carry_modules(root, machine_kernel, modules)
    begin = root / "init"
    begin.write_text(init)
    begin.chmod(0o755)


def _carry(root: Path, program: Path, target: Path) -> None:
    """Copy one program and its shared libraries."""
    target.unlink(missing_ok=True)
    shutil.copy(program, target)
    for path in libraries(program):
        library = root / path[1:]
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(path).resolve(), library)


def libraries(binary: Path) -> list[str]:
    """Paths of the shared libraries of a program or library, from ldd."""
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
    return [word for word in listed.split() if word.startswith("/")]


def _carry_modules(root: Path, machine_kernel: Kernel, modules: Sequence[str]) -> None:
    release, tree = machine_kernel.release, machine_kernel.tree
    sources: set[str] = set()
    for module in (*BASE_MODULES, *modules):
        try:
            lines = _run_admin(
                ["modprobe", "-d", str(tree), "-S", release, "--show-depends", module]
            )
        except subprocess.CalledProcessError:
            continue  # this kernel has no such module
        sources |= {line.split()[1] for line in lines.splitlines() if line.startswith("insmod")}
    base = Path("lib") / "modules" / release
    for source in sources:
        inside = source.split(f"/{base}/", 1)[1]
        target = root / base / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if target.suffix == ".xz":
            subprocess.run(["xz", "-d", target], check=True)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        shutil.copy(tree / base / name, root / base / name)
    _run_admin(["depmod", "-b", str(root), release])
