"""A virtual machine for kernel features: a Debian kernel under software emulation, one initial RAM disk.

The RAM disk contains busybox, the kernel modules and the programs named by the caller, copied from this
machine. A job is a directory with a `run` script: it enters as a tar on a virtual disk, and the files in /out
(with log and exit status) return on another one. For functional tests only: speeds on a software CPU are
not meaningful.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.parts.guests.guest_image import (
    BASE_INIT,
    cache_dir,
    kernel,
    libraries,
    missing,
    ram_disk,
)

__all__ = ["RUN_PYTHON", "Outcome", "cache_dir", "kernel", "missing", "ram_disk", "run"]
MODULES = (
    "ext4 crc32c_generic crc32c_intel fuse overlay loop null_blk dm-mod dm-delay "
    "veth bridge sch_netem sch_tbf sch_htb"
).split()

INIT = f"""{BASE_INIT}
i=0; while [ ! -b /dev/vdc ] && [ $i -lt 100 ]; do usleep 50000; i=$((i+1)); done
touch /out/log; tail -f /out/log > /dev/console 2>&1 &
tar -C /job -xf /dev/vda; cd /job; bash ./run > /out/log 2>&1; echo $? > /out/rc
tar -C /out -cf /dev/vdb .; sync; poweroff -f
"""

#: a job that runs job.py of a job with `carry_penstock`, on its own file system at /mnt
RUN_PYTHON = """modprobe ext4; modprobe loop; mke2fs /dev/vdc >/dev/null
mkdir /mnt; mount /dev/vdc /mnt
export PYTHONHOME=/job/python PYTHONPATH=/job/python/packages:/job
export LD_LIBRARY_PATH=/job/python/shared
{python} -S /job/job.py
"""


@dataclass(frozen=True)
class Outcome:
    """Results of a job: exit status (125 if the guest hung or crashed), log, console, /out."""

    status: int
    log: str
    console: str
    out: Path


def carry_python(job: Path, packages: tuple[Path, ...]) -> None:
    """Copy this interpreter's standard library and pure-Python `packages` into a job's `python/`.

    The job runs them with PYTHONHOME=/job/python, PYTHONPATH=/job/python/packages and
    LD_LIBRARY_PATH=/job/python/shared. Compiled modules are included, as compilation takes long in the guest.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sysconfig.get_path("stdlib"))
    skip = shutil.ignore_patterns(
        "test", "tests", "site-packages", "dist-packages", "config-*", "ensurepip", "idlelib",
        "lib2to3", "tkinter", "turtledemo", "*.opt-?.pyc", "*.a",
    )  # fmt: skip
    shutil.copytree(library, job / "python" / "lib" / version, ignore=skip)
    shared = job / "python" / "shared"
    shared.mkdir()
    for extension in (job / "python" / "lib" / version / "lib-dynload").glob("*.so"):
        for library_path in libraries(extension):
            shutil.copy(Path(library_path).resolve(), shared / Path(library_path).name)
    for package in packages:
        target = job / "python" / "packages" / package.name
        shutil.copytree(package, target, ignore=shutil.ignore_patterns("*.so"))


def python_name() -> str:
    """Name of this interpreter among the guest's programs."""
    return Path(os.path.realpath(sys.executable)).name


def carry_base(package: Path, inside: Path) -> None:
    """Copy the base modules of penstock; the version is not known in the guest."""
    for path in package.glob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            shutil.copy(path, inside / path.name)
    (inside / "__init__.py").write_text('"""The parts that need no compiled module."""\n')
    (inside / "version.py").write_text("def version() -> str:\n    return 'guest'\n")


def carry_penstock(job: Path, package: Path) -> None:
    """Copy this interpreter and the parts of penstock that only need it: `host`, `emulate`, `spec`."""
    parts = ("host", "emulate", "spec")
    carry_python(job, tuple(package / part for part in parts))
    inside = job / "python" / "packages"
    (inside / "penstock").mkdir()
    for part in parts:
        shutil.move(inside / part, inside / "penstock" / part)
    carry_base(package, inside / "penstock")


def carry_extension(job: Path, extension: Path, into: Path) -> None:
    """Copy a compiled module next to the package that imports it, and the libraries that it names."""
    shutil.copy(extension, into / extension.name)
    for library_path in libraries(extension):
        shutil.copy(
            Path(library_path).resolve(), job / "python" / "shared" / Path(library_path).name
        )


def run(
    job: Path,
    programs: tuple[str, ...],
    out: Path,
    timeout_s: float = 540,
    *,
    one_thread: bool = False,
    suite: str = "",
) -> Outcome:
    """Boot the kernel of `suite`, run `job/run`, power off; `out` gets the job's files in /out.

    `one_thread` runs all CPUs in turn, for jobs during which the kernel changes its own code: with a thread
    for each CPU, QEMU 7.2 can execute a breakpoint forever that the kernel has already replaced by a jump
    (observed in `__bpf_prog_enter_recur`, where the accounting of BPF run times is switched).
    """
    machine_kernel = kernel(suite)
    image = ram_disk(machine_kernel, programs, MODULES, INIT)
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
            "-append", "console=ttyS0 loglevel=6 panic=-1 tsc=reliable",
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
