"""A virtual machine for kernel features that this host lacks; it runs commands from a serial channel.

QEMU emulates the processor in software (TCG). Processor times are therefore those of a slow machine, but
latencies of links and limits of disks are correct. The guest shares only the channel and the files of its
specification with the host; there is no network between them.

Protocol of the channel, one line each way: the request `ID SECONDS BASE64(command)` and the response
`ID STATUS BASE64(stdout) BASE64(stderr)`. The guest starts with the line `ready`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.parts.guests.guest_image import BASE_INIT, PATH, kernel, missing, ram_disk
from penstock.spec.guest import GuestSpec
from penstock.state import runtime_dir

#: limit of the returned stdout, and of the returned stderr, of a command [bytes]
MOST_OUTPUT_BYTES = 1 << 20
_BOOT_WITHIN_S = 300.0
#: time after the time-out of a command until the guest counts as hung
_GRACE_S = 60.0
#: programs that the agent in the guest needs and busybox lacks
_AGENT_PROGRAMS = ("bash",)

_INIT = f"""{BASE_INIT}
modprobe virtio_console
for m in $(cat /modules); do modprobe $m; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 200 ]; do usleep 50000; i=$((i+1)); done
tar -C /job -xf /dev/vda
ip link set lo up
exec bash /job/.agent
"""

#: reads commands and writes responses; at a time-out it kills the session of the command, not its daemons
_AGENT = f"""cd /job
end() {{
  for process in /proc/[0-9]*; do
    line=$(cat $process/stat 2>/dev/null)
    fields=(${{line##*) }})
    if [ "${{fields[3]}}" = "$1" ]; then kill -KILL ${{process#/proc/}}; fi
  done
}}
exec 3<>/dev/vport0p1
echo ready >&3
while read -r id seconds line <&3; do
  printf %s "$line" | base64 -d > /run/command
  setsid bash -c 'echo $$ > /run/session; exec timeout -s KILL "$0" bash /run/command' "$seconds" \\
    >/run/stdout 2>/run/stderr </dev/null 3>&-
  status=$?
  if [ $status = 137 ]; then end "$(cat /run/session)"; fi
  printf '%s %s %s %s\\n' "$id" "$status" \\
    "$(head -c {MOST_OUTPUT_BYTES} /run/stdout | base64 -w0)." \\
    "$(head -c {MOST_OUTPUT_BYTES} /run/stderr | base64 -w0)." >&3
done
"""


@dataclass(frozen=True)
class Answer:
    """Result of a command in the guest; times are CLOCK_MONOTONIC of the host. `timed_out`: killed."""

    status: int
    stdout: bytes
    stderr: bytes
    start_ns: int
    end_ns: int
    timed_out: bool = False


class Guest:
    """A running guest, until `stop`. It is killed with this process; `undo` cleans up after a crash."""

    def __init__(self, spec: GuestSpec, journal: Journal) -> None:
        """Boot the guest. Raises PenstockError if this host lacks a program or the guest does not start."""
        if programs := missing():
            raise PenstockError(
                f"a guest needs {', '.join(programs)}, which this host lacks "
                "(Debian: qemu-system-x86 busybox-static cpio zstd kmod)"
            )
        try:
            kernel_package = kernel(spec.suite)
            in_guest = tuple(dict.fromkeys((*_AGENT_PROGRAMS, *spec.programs)))
            modules = ("virtio_console", *spec.modules)
            image = ram_disk(kernel_package, in_guest, modules, _INIT)
        except (LookupError, FileNotFoundError) as error:
            raise PenstockError(f"the guest cannot be created: {error}") from None
        self.release = kernel_package.release
        self._journal = journal
        self._channel: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._count = 0
        self._home: Entry | None = None
        self.cgroup: RunCgroup | None = None
        try:
            self._boot(spec, kernel_package.image, image)
        except BaseException:
            self.stop()
            raise

    def _boot(self, spec: GuestSpec, image: Path, initrd: Path) -> None:
        self._home = make_directory(runtime_dir() / f"guest-{new_token()}", self._journal)
        self.cgroup = create_run_cgroup("guest", None, self._journal)
        home = Path(self._home.target)
        job = home / "job.tar"
        _pack(job, spec)
        drives = ["-drive", f"file={job},if=virtio,format=raw,readonly=on"]
        for number, disk in enumerate(spec.disks):
            path = home / f"disk{number}"
            with path.open("wb") as file:
                file.truncate(disk.size_bytes)
            drive = f"file={path},if=virtio,format=raw,cache=none,aio=threads"
            if disk.rate_bps is not None:
                drive += f",throttling.bps-total={disk.rate_bps}"
            if disk.iops is not None:
                drive += f",throttling.iops-total={disk.iops}"
            drives += ["-drive", drive]
        channel = home / "channel"
        argv = [
            shutil.which("qemu-system-x86_64", path=PATH) or "qemu-system-x86_64",
            "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
            "-m", str(spec.memory_bytes >> 20), "-smp", str(spec.cpus), "-nographic", "-no-reboot",
            "-nic", "none", "-serial", f"file:{home / 'console'}", "-monitor", "none",
            "-kernel", str(image), "-initrd", str(_with_modules(home, initrd, spec.modules)),
            "-append", "console=ttyS0 quiet loglevel=3 panic=-1 tsc=reliable",
            *drives,
            "-chardev", f"socket,id=channel,path={channel},server=on,wait=off",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel,nr=1",
        ]  # fmt: skip
        # QEMU is killed with this process, and joins the cgroup before it starts
        enter = "".join(f'echo $$ > "{path}"; ' for path in self.cgroup.enter_args())
        line = ["setpriv", "--pdeathsig", "KILL", *argv]
        with (home / "log").open("wb") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", enter + 'exec "$@"', "penstock", *line],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self.cgroup.environment()},
            )  # fmt: skip
        until = time.monotonic() + _BOOT_WITHIN_S
        self._channel = self._connected(channel, until)
        greeting = self._line(until)
        if greeting != b"ready":
            raise PenstockError(f"the guest sent {greeting[:80]!r} first; expected ready")

    def run(self, command: str, timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
        """Run a line of bash in the guest, in the directory /job.

        Raises PenstockError with the end of the console if the guest has died or hangs.
        """
        if self._channel is None:
            raise PenstockError("the guest is not running")
        self._count += 1
        named = "".join(f"export {k}={_quoted(v)}\n" for k, v in (env or {}).items())
        text = base64.b64encode((named + command).encode()).decode()
        seconds = max(1, round(timeout_s))
        start_ns = time.monotonic_ns()
        try:
            self._channel.settimeout(_GRACE_S)
            self._channel.sendall(f"{self._count} {seconds} {text}\n".encode())
            fields = self._line(time.monotonic() + seconds + _GRACE_S).split(b" ")
            number, status, out, err = fields
            end_ns = time.monotonic_ns()
            if int(number) != self._count:
                raise ValueError(f"it has the number {int(number)} instead of {self._count}")
            out, err = (base64.b64decode(part.rstrip(b"."), validate=True) for part in (out, err))
            return Answer(
                int(status), out, err, start_ns, end_ns,
                timed_out=int(status) == 137 and end_ns - start_ns >= 0.9e9 * seconds,
            )  # fmt: skip
        except (OSError, ValueError, binascii.Error) as error:
            raise PenstockError(f"invalid response of the guest: {error}. {self._tail()}") from None

    def stop(self) -> None:
        """Kill the guest; its files are lost."""
        with contextlib.ExitStack() as stack:
            if self._home is not None:
                stack.callback(remove_directory, self._home, self._journal)
                self._home = None
            if self.cgroup is not None:
                stack.callback(self.cgroup.remove)
                self.cgroup = None
            if self._child is not None:
                child, self._child = self._child, None
                stack.callback(child.wait)
                stack.callback(child.kill)
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    @property
    def alive(self) -> bool:
        """True if QEMU is running."""
        return self._child is not None and self._child.poll() is None

    def _connected(self, path: Path, until: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(path))
                return connection
            except OSError:
                connection.close()
            if not self.alive or time.monotonic() > until:
                raise PenstockError(f"the guest did not start. {self._tail()}")
            time.sleep(0.02)

    def _line(self, until: float) -> bytes:
        """Receive the next line. Raises PenstockError at a time-out, for a line too long, or at the end."""
        assert self._channel is not None
        while b"\n" not in self._received:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                raise PenstockError(f"the guest does not answer. {self._tail()}")
            self._channel.settimeout(min(remaining_s, 1.0))
            with contextlib.suppress(TimeoutError):
                more = self._channel.recv(1 << 16)
                if not more:
                    raise PenstockError(f"the guest has died. {self._tail()}")
                self._received += more
            if len(self._received) > 4 * MOST_OUTPUT_BYTES:
                raise PenstockError(
                    f"the guest sent {len(self._received)} bytes without the end of a line"
                )
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _tail(self) -> str:
        """The last lines of QEMU's log and of the console."""
        lines: list[str] = []
        for name in ("log", "console"):
            if self._home is not None:
                with contextlib.suppress(OSError):
                    text = (Path(self._home.target) / name).read_text(errors="replace")
                    lines += [line.strip() for line in text.splitlines() if line.strip()][-3:]
        return f"Its last output: {' | '.join(lines)}"[:600] if lines else "It printed nothing."


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _pack(path: Path, spec: GuestSpec) -> None:
    """Write the files of the guest and its agent as a tar file, which the guest reads as a disk."""
    agent = path.with_name("agent")
    agent.write_text(_AGENT)
    with tarfile.open(path, "w") as tar:
        tar.add(agent, arcname=".agent")
        for name, source in spec.files:
            tar.add(source, arcname=name)


def _with_modules(home: Path, initrd: Path, modules: Sequence[str]) -> Path:
    """Prepend an archive with the list of modules to the RAM disk (initramfs is a sequence of archives)."""
    place = home / "more"
    place.mkdir()
    (place / "modules").write_text("\n".join(modules) + "\n")
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=place, input=b"modules\n", check=True,
        capture_output=True,
    ).stdout  # fmt: skip
    combined = home / "initrd"
    with combined.open("wb") as sink, initrd.open("rb") as source:
        sink.write(packed + bytes(-len(packed) % 512))
        shutil.copyfileobj(source, sink)
    return combined
