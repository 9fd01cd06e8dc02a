"""A virtual machine for what this host's kernel lacks: booted once, then told commands over a serial channel.

The processor is software (QEMU's TCG) where the host has no KVM that works: its times are those of a slow
machine, and a link's latency or a disk's limit is what it is. Nothing is shared with the host but the channel
and the files that are handed in; there is no network between the two.

Protocol of the channel, a line each way: `ID SECONDS BASE64(command)`, answered by
`ID STATUS BASE64(stdout) BASE64(stderr)`; the guest begins with `ready`.
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

#: how much of a command's stdout, and of its stderr, comes back [bytes]
MOST_OUTPUT_BYTES = 1 << 20
_BOOT_WITHIN_S = 300.0
#: what the guest may take beyond a command's own time-out before it is taken to hang
_GRACE_S = 60.0
#: programs of the channel's other end, where busybox has none
_AGENT_PROGRAMS = ("bash",)

_INIT = f"""{BASE_INIT}
modprobe virtio_console
for m in $(cat /modules); do modprobe $m; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 200 ]; do usleep 50000; i=$((i+1)); done
tar -C /job -xf /dev/vda
ip link set lo up
exec bash /job/.agent
"""

#: reads commands and answers; one that takes too long is ended with all of its session, which daemons leave
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
    """How a command in the guest ended. `timed_out`: it was ended there, its time being over."""

    status: int
    stdout: bytes
    stderr: bytes
    start_ns: int
    end_ns: int
    timed_out: bool = False


class Guest:
    """A guest that is up, until `stop`; it ends with this process, and `undo` ends it after a crash."""

    def __init__(self, spec: GuestSpec, journal: Journal) -> None:
        """Boots it. PenstockError where this host lacks what that needs, or the guest does not come up."""
        if lacking := missing():
            raise PenstockError(
                f"a guest needs {', '.join(lacking)}, which this host lacks "
                "(Debian: qemu-system-x86 busybox-static cpio zstd kmod)"
            )
        try:
            found = kernel(spec.suite)
            programs = tuple(dict.fromkeys((*_AGENT_PROGRAMS, *spec.programs)))
            modules = ("virtio_console", *spec.modules)
            image = ram_disk(found, programs, modules, _INIT)
        except (LookupError, FileNotFoundError) as error:
            raise PenstockError(f"the guest cannot be made: {error}") from None
        self.release = found.release
        self._journal = journal
        self._channel: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._count = 0
        self._home: Entry | None = None
        self.cgroup: RunCgroup | None = None
        try:
            self._boot(spec, found.image, image)
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
            told = f"file={path},if=virtio,format=raw,cache=none,aio=threads"
            if disk.rate_bps is not None:
                told += f",throttling.bps-total={disk.rate_bps}"
            if disk.iops is not None:
                told += f",throttling.iops-total={disk.iops}"
            drives += ["-drive", told]
        channel = home / "channel"
        words = [
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
        # it ends with this process, and enters the group before it begins
        enter = "".join(f'echo $$ > "{path}"; ' for path in self.cgroup.enter_args())
        line = ["setpriv", "--pdeathsig", "KILL", *words]
        with (home / "log").open("wb") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", enter + 'exec "$@"', "penstock", *line],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self.cgroup.environment()},
            )  # fmt: skip
        until = time.monotonic() + _BOOT_WITHIN_S
        self._channel = self._connected(channel, until)
        said = self._line(until)
        if said != b"ready":
            raise PenstockError(f"the guest began with {said[:80]!r}; expected ready")

    def run(self, command: str, timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
        """Runs a line for bash in the guest, in /job; gives how it ended.

        PenstockError, with the end of the console, if the guest has died or hangs.
        """
        if self._channel is None:
            raise PenstockError("the guest is not up")
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
                raise ValueError(f"the answer to command {int(number)}")
            out, err = (base64.b64decode(part.rstrip(b"."), validate=True) for part in (out, err))
            return Answer(
                int(status), out, err, start_ns, end_ns,
                timed_out=int(status) == 137 and end_ns - start_ns >= 0.9e9 * seconds,
            )  # fmt: skip
        except (OSError, ValueError, binascii.Error) as error:
            raise PenstockError(
                f"the guest answered with nonsense: {error}. {self._tail()}"
            ) from None

    def stop(self) -> None:
        """Ends it at once; what was in it is gone."""
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
        """Whether it still runs."""
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
        """The next line of the guest's; bounded in size and time."""
        assert self._channel is not None
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if left <= 0:
                raise PenstockError(f"the guest does not answer. {self._tail()}")
            self._channel.settimeout(min(left, 1.0))
            with contextlib.suppress(TimeoutError):
                more = self._channel.recv(1 << 16)
                if not more:
                    raise PenstockError(f"the guest has died. {self._tail()}")
                self._received += more
            if len(self._received) > 4 * MOST_OUTPUT_BYTES:
                raise PenstockError(f"the guest says {len(self._received)} bytes without an end")
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _tail(self) -> str:
        """The end of its console and of QEMU's own words."""
        said: list[str] = []
        for name in ("log", "console"):
            if self._home is not None:
                with contextlib.suppress(OSError):
                    text = (Path(self._home.target) / name).read_text(errors="replace")
                    said += [line.strip() for line in text.splitlines() if line.strip()][-3:]
        return f"It said last: {' | '.join(said)}"[:600] if said else "It said nothing."


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _pack(path: Path, spec: GuestSpec) -> None:
    """The files of the guest and its agent, as a tar that is a disk."""
    agent = path.with_name("agent")
    agent.write_text(_AGENT)
    with tarfile.open(path, "w") as tar:
        tar.add(agent, arcname=".agent")
        for name, source in spec.files:
            tar.add(source, arcname=name)


def _with_modules(home: Path, initrd: Path, modules: Sequence[str]) -> Path:
    """The RAM disk with the list of modules to load: another archive after the first (initramfs buffers)."""
    place = home / "more"
    place.mkdir()
    (place / "modules").write_text("\n".join(modules) + "\n")
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=place, input=b"modules\n", check=True,
        capture_output=True,
    ).stdout  # fmt: skip
    whole = home / "initrd"
    with whole.open("wb") as sink, initrd.open("rb") as source:
        sink.write(packed + bytes(-len(packed) % 512))
        shutil.copyfileobj(source, sink)
    return whole
