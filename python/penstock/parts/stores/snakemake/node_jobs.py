"""Run the commands of one client node: a session for each job, which ends with this program.

Started inside the node, standard library only. Reads requests as JSON lines on stdin: a job, or
`{"cancel": JOB}`. Writes a line for each job that ends, with times of CLOCK_MONOTONIC, which all nodes of a
host share, and for each job that asks for its hints (`HINTS_FD`). At the end of stdin all jobs are killed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Iterable
from typing import IO, TypedDict

#: bytes of a job's output in its line: the last ones
MOST_OUTPUT = 64 << 10
#: variable with the descriptor on which a job asks for its hints, and waits for an answer
HINTS_FD = "PENSTOCK_HINTS_FD"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
#: interval between two looks for an input that another node has just written [s]
LOOK_EVERY_S = 0.05
#: interval between two looks for orphans that ended [ms]
REAP_EVERY_MS = 500


class Request(TypedDict, total=False):
    """A job, if it has `argv`; else `cancel`, or `hinted` with the files `created`, as the name of a job."""

    job: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    inputs: list[str]
    wait_s: float
    created: list[str]
    cancel: str
    hinted: str


class Line(TypedDict, total=False):
    """A job that asks for its `hints`, or one that ended."""

    job: str
    hints: bool
    status: int
    output: str
    started_ns: int
    ended_ns: int


class Job:
    """Running job: its process, the descriptor of its end, and its output."""

    def __init__(
        self, name: str, pid: int, output: IO[bytes], hints: socket.socket, created: "Stamps"
    ) -> None:
        self.name, self.pid, self.output, self.created = name, pid, output, created
        self.ended_fd = os.pidfd_open(pid)
        self.begin_ns = time.monotonic_ns()
        self.hints: socket.socket | None = hints

    def answer(self, status: int) -> Line:
        """Its line; removes outputs that were created for their hints and that it did not write."""
        ended_ns, code = time.monotonic_ns(), os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        now = stamps(list(self.created))
        for path, before in self.created.items():
            if before is not None and before == now[path] and before[0] == 0:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - MOST_OUTPUT))
        text = self.output.read().decode(errors="replace")
        self.output.close()
        return {
            "job": self.name,
            "status": code,
            "output": text,
            "started_ns": self.begin_ns,
            "ended_ns": ended_ns,
        }


Stamps = dict[str, tuple[int, int, int] | None]


def stamps(paths: list[str]) -> Stamps:
    """Size, number and last change of files; None for an absent one."""
    result: Stamps = {}
    for path in paths:
        result[path] = None
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            result[path] = status.st_size, status.st_ino, status.st_mtime_ns
    return result


class Node:
    """The jobs of this node."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        """Run jobs until stdin ends."""
        rest = b""
        while True:
            for fd, _ in self.poller.poll(REAP_EVERY_MS if self.jobs else None):
                if fd == 0:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self.accept(json.loads(line))
                else:
                    self.hear(fd)
            self.reap()

    def accept(self, request: Request) -> None:
        """Start a job, cancel one, or pass the answer to one that asked for its hints."""
        if "argv" in request:
            try:
                self.start(request)
            except OSError as error:
                now, text = time.monotonic_ns(), f"{request['job']}: {error}\n"
                line: Line = {"job": request["job"], "status": 126, "output": text}
                put({**line, "started_ns": now, "ended_ns": now})
            return
        for job in list(self.jobs.values()):
            if job.name == request.get("cancel"):
                end([job.pid, *descendants(job.pid)])  # the job first: it must not see others end
            elif job.name == request.get("hinted") and job.hints is not None:
                job.created = stamps(request["created"])
                with contextlib.suppress(OSError):
                    job.hints.sendall(b"\n")

    def start(self, request: Request) -> None:
        """Fork the process of a job."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the job has ended
        ours, its = socket.socketpair()
        agent, created = os.getpid(), stamps(request["created"])
        pid = os.fork()
        if not pid:
            become(request, agent, output.fileno(), its.fileno())
        its.close()
        job = self.jobs[pid] = Job(request["job"], pid, output, ours, created)
        for fd in (job.ended_fd, ours.fileno()):
            self.poller.register(fd, select.POLLIN)

    def hear(self, fd: int) -> None:
        """Report that a job asks for its hints."""
        for job in self.jobs.values():
            if job.hints is not None and job.hints.fileno() == fd:
                request = b""
                with contextlib.suppress(OSError):  # it died before it had read the answer
                    request = job.hints.recv(1)
                if request:
                    put({"job": job.name, "hints": True})
                else:
                    self.forget(job)
                return

    def forget(self, job: Job) -> None:
        """Close the connection of a job."""
        if job.hints is not None:
            self.poller.unregister(job.hints.fileno())
            job.hints.close()
            job.hints = None

    def reap(self) -> None:
        """Report the jobs that ended, and bury orphans of jobs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self.jobs.pop(pid, None)
            if job is not None:
                self.forget(job)
                self.poller.unregister(job.ended_fd)
                os.close(job.ended_fd)
                put(job.answer(status))


def become(request: Request, agent: int, output: int, hints: int) -> None:
    """Turn this process into the job's command, once its inputs are visible on this node."""
    status = 126
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(status)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, target)
        os.chdir(request["cwd"])
        missing = awaited(request["inputs"], request["wait_s"])
        if missing:
            os.write(2, f"inputs that this node cannot see: {', '.join(missing)}\n".encode())
            os._exit(status)
        os.set_inheritable(hints, True)
        environment = {**request["env"], HINTS_FD: str(hints)}
        os.execvpe(request["argv"][0], request["argv"], environment)
    except BaseException as error:
        os.write(2, f"{request['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(status)


def awaited(paths: list[str], patience_s: float) -> list[str]:
    """Paths that do not appear within `patience_s`: clients may cache directories for a while."""
    until = time.monotonic() + patience_s
    missing = [path for path in paths if not os.path.lexists(path)]
    while missing and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)
        missing = [path for path in missing if not os.path.lexists(path)]
    return missing


def descendants(top: int) -> set[int]:
    """Processes below a process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
    below, before = {top}, 0
    while len(below) > before:
        before = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return below - {top}


def end(pids: Iterable[int]) -> None:
    """Kill processes, in this order."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all() -> None:
    """Kill and bury all processes below this one."""
    while below := descendants(os.getpid()):
        end(below)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def put(line: Line) -> None:
    """Write one line."""
    text = json.dumps(line).encode() + b"\n"
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    try:
        Node().serve()
    finally:
        end_all()
