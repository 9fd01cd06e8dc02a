"""A virtual machine for kernel features: a Debian kernel under software emulation, one initial RAM disk.

The RAM disk holds busybox, the kernel modules and the programs named by the caller, copied from this
machine. A job is a directory with a `run` script: it travels in as a tar on a virtual disk, and what the
script leaves in /out (with its log and exit status) travels back on another. Functions only: a software
CPU says nothing about speed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

NEEDED_PROGRAMS = ("qemu-system-x86_64", "busybox", "cpio", "zstd", "depmod", "modprobe")
KERNEL_PACKAGE = "linux-image-cloud-amd64"
#: what Debian signs its archives with, of every release that it still serves
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: where programs are looked for
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
MODULES = (
    "virtio_pci virtio_blk ext4 crc32c_generic crc32c_intel fuse overlay loop null_blk dm-mod dm-delay "
    "veth bridge sch_netem sch_tbf sch_htb"
).split()

INIT = """#!/bin/sh
export PATH=/bin HOME=/root
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev 2>/dev/null
mount -t tmpfs t /run; mount -t tmpfs t /tmp
mount -t cgroup2 c /sys/fs/cgroup; mount -t tracefs t /sys/kernel/tracing
modprobe virtio_pci; modprobe virtio_blk
i=0; while [ ! -b /dev/vdc ] && [ $i -lt 100 ]; do usleep 50000; i=$((i+1)); done
tar -C /job -xf /dev/vda; cd /job; bash ./run > /out/log 2>&1; echo $? > /out/rc
tar -C /out -cf /dev/vdb .; sync; poweroff -f
"""

#: a job that runs job.py of a job with `carry_penstock`, on a file system of its own at /mnt
RUN_PYTHON = """modprobe ext4; modprobe loop; mke2fs /dev/vdc >/dev/null
mkdir /mnt; mount /dev/vdc /mnt
export PYTHONHOME=/job/python PYTHONPATH=/job/python/packages:/job
export LD_LIBRARY_PATH=/job/python/shared
{python} -S /job/job.py
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel package, unpacked: its release and where it lies."""

    release: str
    tree: Path

    @property
    def image(self) -> Path:
        """The compressed kernel."""
        return self.tree / "boot" / f"vmlinuz-{self.release}"


@dataclass(frozen=True)
class Outcome:
    """What a job left: exit status (125 when the guest hung or crashed), log, console, /out."""

    status: int
    log: str
    console: str
    out: Path


def cache_dir() -> Path:
    """Where kernels and RAM disks are kept between runs, outside the tree."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "penstock" / "guest"
    path.mkdir(parents=True, exist_ok=True)
    return path


def missing() -> list[str]:
    """Programs that the guest needs and this machine lacks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [p for p in NEEDED_PROGRAMS if shutil.which(p, path=path) is None]


def kernel(suite: str = "") -> Kernel:
    """The newest cloud kernel of this machine's Debian, or of another `suite`; downloaded once.

    LookupError: the archive that this machine uses does not give it.
    """
    options = _apt_of(suite) if suite else []
    package = _newest(options)
    if package is None or not _unpacked(package):
        with tempfile.TemporaryDirectory(dir=cache_dir()) as work:
            try:
                if suite:
                    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
                    package = _newest(options)
                subprocess.run(
                    ["apt-get", *options, "-qq", "download", str(package)], cwd=work, check=True
                )
            except subprocess.CalledProcessError as error:
                raise LookupError(
                    f"{KERNEL_PACKAGE} of {suite or 'this Debian'}: {error}"
                ) from None
            _unpack(next(Path(work).glob("*.deb")), cache_dir() / str(package))
    release = str(package).removeprefix("linux-image-")
    return Kernel(release, cache_dir() / str(package))


def _apt_of(suite: str) -> list[str]:
    """Options by which apt knows `suite` alone, from where this machine's own packages come.

    Only its lists are kept, in a place of their own; what is installed here is neither asked nor changed.
    """
    own = platform.freedesktop_os_release()["VERSION_CODENAME"]
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    archives = sorted({(uri, of) for uri, of in map(str.split, told.splitlines())})
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
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _newest(options: list[str]) -> str | None:
    """The package that the kernel's own name stands for; None if the lists do not know it."""
    depends = subprocess.run(
        ["apt-cache", *options, "depends", KERNEL_PACKAGE], capture_output=True, text=True
    ).stdout
    lines = (x for x in depends.splitlines() if "Depends:" in x and "linux-image" in x)
    return next((line.split()[-1] for line in lines), None)


def _unpacked(package: str) -> bool:
    image = f"vmlinuz-{package.removeprefix('linux-image-')}"
    return (cache_dir() / package / "boot" / image).is_file()


def _unpack(archive: Path, tree: Path) -> None:
    made = archive.parent / "x"
    subprocess.run(["dpkg", "-x", archive, made], check=True)
    if not (made / "lib").exists():
        (made / "lib").symlink_to("usr/lib")
    _run_admin(["depmod", "-b", str(made), tree.name.removeprefix("linux-image-")])
    shutil.rmtree(tree, ignore_errors=True)
    made.rename(tree)


def _run_admin(argv: list[str]) -> str:
    env = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout


def ram_disk(machine_kernel: Kernel, programs: tuple[str, ...] = ("bash",)) -> Path:
    """The initial RAM disk with `programs` (names on PATH) and their libraries; built once per content."""
    key = hashlib.sha256(
        "\n".join([machine_kernel.release, INIT, *MODULES, *programs]).encode()
    ).hexdigest()[:12]
    image = cache_dir() / f"initrd-{machine_kernel.release}-{key}.zst"
    if image.is_file():
        return image
    with tempfile.TemporaryDirectory(dir=cache_dir()) as work:
        root = Path(work) / "root"
        _fill(root, machine_kernel, programs)
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


def _fill(root: Path, machine_kernel: Kernel, programs: tuple[str, ...]) -> None:
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
    _carry_modules(root, machine_kernel)
    init = root / "init"
    init.write_text(INIT)
    init.chmod(0o755)


def _carry(root: Path, program: Path, target: Path) -> None:
    """Copies one program and the shared libraries it names."""
    target.unlink(missing_ok=True)
    shutil.copy(program, target)
    for word in _libraries(program):
        library = root / word[1:]
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(word).resolve(), library)


def _libraries(binary: Path) -> list[str]:
    """Paths of the shared libraries that a program or library names."""
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
    return [word for word in listed.split() if word.startswith("/")]


def _carry_modules(root: Path, machine_kernel: Kernel) -> None:
    release, tree = machine_kernel.release, machine_kernel.tree
    wanted: set[str] = set()
    for module in MODULES:
        try:
            lines = _run_admin(
                ["modprobe", "-d", str(tree), "-S", release, "--show-depends", module]
            )
        except subprocess.CalledProcessError:
            continue  # this kernel has no such module
        wanted |= {line.split()[1] for line in lines.splitlines() if line.startswith("insmod")}
    base = Path("lib") / "modules" / release
    for source in wanted:
        inside = source.split(f"/{base}/", 1)[1]
        target = root / base / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if target.suffix == ".xz":
            subprocess.run(["xz", "-d", target], check=True)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        shutil.copy(tree / base / name, root / base / name)
    _run_admin(["depmod", "-b", str(root), release])


def carry_python(job: Path, packages: tuple[Path, ...]) -> None:
    """Puts this interpreter's standard library and pure-Python `packages` into a job's `python/`.

    The job runs them with PYTHONHOME=/job/python, PYTHONPATH=/job/python/packages and
    LD_LIBRARY_PATH=/job/python/shared.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib"))
    skip = shutil.ignore_patterns(
        "test", "tests", "site-packages", "dist-packages", "config-*", "ensurepip", "idlelib",
        "lib2to3", "tkinter", "turtledemo", "__pycache__", "*.a",
    )  # fmt: skip
    shutil.copytree(library, job / "python" / "lib" / version, ignore=skip)
    shared = job / "python" / "shared"
    shared.mkdir()
    for extension in (job / "python" / "lib" / version / "lib-dynload").glob("*.so"):
        for word in _libraries(extension):
            shutil.copy(Path(word).resolve(), shared / Path(word).name)
    for package in packages:
        target = job / "python" / "packages" / package.name
        shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))


def python_name() -> str:
    """What this interpreter is called among the guest's programs."""
    return Path(os.path.realpath(sys.executable)).name


def carry_base(package: Path, inside: Path) -> None:
    """The modules of penstock on which its packages rest; what the version is, is not known in there."""
    for path in package.glob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            shutil.copy(path, inside / path.name)
    (inside / "__init__.py").write_text('"""The parts that need no compiled module."""\n')
    (inside / "version.py").write_text("def version() -> str:\n    return 'guest'\n")


def carry_penstock(job: Path, package: Path) -> None:
    """This interpreter and the parts of penstock that need nothing but it: `host`, `emulate`, `spec`."""
    parts = ("host", "emulate", "spec")
    carry_python(job, tuple(package / part for part in parts))
    inside = job / "python" / "packages"
    (inside / "penstock").mkdir()
    for part in parts:
        shutil.move(inside / part, inside / "penstock" / part)
    carry_base(package, inside / "penstock")


def carry_extension(job: Path, extension: Path, into: Path) -> None:
    """Puts a compiled module beside the package that imports it, and the libraries that it names."""
    shutil.copy(extension, into / extension.name)
    for word in _libraries(extension):
        shutil.copy(Path(word).resolve(), job / "python" / "shared" / Path(word).name)


def run(
    job: Path,
    programs: tuple[str, ...],
    out: Path,
    timeout_s: float = 180,
    *,
    one_thread: bool = False,
    suite: str = "",
) -> Outcome:
    """Boots the kernel of `suite`, runs `job/run`, powers off; `out` gets what the job left in /out.

    `one_thread` runs all CPUs in turns, for jobs that let the kernel change its own code while they are at
    work: with a thread for each, QEMU 7.2 can go on running the breakpoint that stood where the kernel then
    put a jump, for ever (seen in `__bpf_prog_enter_recur`, where the account of BPF run times is switched).
    """
    machine_kernel = kernel(suite)
    image = ram_disk(machine_kernel, programs)
    with tempfile.TemporaryDirectory() as work:
        disks = {name: Path(work) / name for name in ("job", "out", "scratch")}
        with tarfile.open(disks["job"], "w") as tar:
            tar.add(job, arcname=".")
        for name, size in (("out", 64 << 20), ("scratch", 512 << 20)):
            with disks[name].open("wb") as file:
                file.truncate(size)
        accelerator = f"tcg,thread={'single' if one_thread else 'multi'}"
        argv = [
            "qemu-system-x86_64", "-machine", "q35", "-accel", accelerator, "-cpu", "max",
            "-m", "2G", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none",
            "-kernel", str(machine_kernel.image), "-initrd", str(image),
            "-append", "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable",
            "-drive", f"file={disks['job']},if=virtio,format=raw,readonly=on",
            "-drive", f"file={disks['out']},if=virtio,format=raw",
            "-drive", f"file={disks['scratch']},if=virtio,format=raw,cache=none",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s
            )
            console = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as expired:
            console = (expired.stdout or b"").decode(errors="replace") + "\n(timed out)"
        out.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(disks["out"]) as tar:
                tar.extractall(out, filter="data")
        except tarfile.TarError:
            return Outcome(125, "", console, out)
    if not (out / "rc").is_file():
        return Outcome(125, "", console, out)
    log = (out / "log").read_text(errors="replace")
    return Outcome(int((out / "rc").read_text()), log, console, out)
