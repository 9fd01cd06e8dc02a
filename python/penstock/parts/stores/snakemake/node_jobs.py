"""Run the commands of one client node: a session for each job, which ends with this program.

Started inside the node (`node_script`), standard library only. Reads requests as JSON lines on stdin: a job,
or `{"cancel": JOB}`. Writes a line for each job that ends, with times of CLOCK_MONOTONIC, which all nodes of
a host share, and for each job that asks for its hints (`HINTS_FD`). At the end of stdin all jobs are killed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
from typing import TypedDict

from penstock.parts.stores.node_processes import MARK, Output, kill, kill_job, new_mark

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
        self,
        name: str,
        pid: int,
        mark: str,
        output: Output,
        hints: socket.socket,
        created: "Stamps",
    ) -> None:
        self.name, self.pid, self.mark = name, pid, mark
        self.output, self.created = output, created
        self.ended_fd = os.pidfd_open(pid)
        self.begin_ns = time.monotonic_ns()
        self.hints: socket.socket | None = hints

    def answer(self) -> Line:
        """Its line, once its process has ended; kills the processes that it left.

        Removes outputs that were created for their hints and that it did not write.
        """
        ended_ns = time.monotonic_ns()
        kill_job(self.pid, self.mark)  # the zombie still has the number
        _, status = os.waitpid(self.pid, 0)
        now = stamps(list(self.created))
        for path, before in self.created.items():
            if before is not None and before == now[path] and before[0] == 0:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self.output.drain()
        os.close(self.output.fd)
        return {
            "job": self.name,
            "status": os.waitstatus_to_exitcode(status),
            "output": self.output.text(),
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
                kill(job.pid)  # it must not see others end, which follow when it has ended
            elif job.name == request.get("hinted") and job.hints is not None:
                job.created = stamps(request["created"])
                with contextlib.suppress(OSError):
                    job.hints.sendall(b"\n")

    def start(self, request: Request) -> None:
        """Fork the process of a job."""
        (reads, writes), (ours, its) = os.pipe(), socket.socketpair()
        agent, mark, created = os.getpid(), new_mark(), stamps(request["created"])
        pid = os.fork()
        if not pid:
            become(request, agent, mark, writes, its.fileno())
        os.close(writes)
        its.close()
        job = self.jobs[pid] = Job(request["job"], pid, mark, Output(reads), ours, created)
        for fd in (job.ended_fd, reads, ours.fileno()):
            self.poller.register(fd, select.POLLIN)

    def hear(self, fd: int) -> None:
        """Read a job's output, or report that it asks for its hints."""
        for job in self.jobs.values():
            if fd == job.output.fd:
                if not job.output.take():
                    self.poller.unregister(fd)
                return
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
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            job = self.jobs.pop(ended.si_pid, None)
            if job is None:
                os.waitpid(ended.si_pid, 0)
                continue
            self.forget(job)
            self.poller.unregister(job.ended_fd)
            with contextlib.suppress(KeyError):  # the output may have ended before
                self.poller.unregister(job.output.fd)
            os.close(job.ended_fd)
            put(job.answer())


def become(request: Request, agent: int, mark: str, output: int, hints: int) -> None:
    """Turn this process into the job's command, once its inputs are visible on this node."""
    status = 126
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
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
        environment = {**request["env"], HINTS_FD: str(hints), MARK: mark}
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


def end_all() -> None:
    """Kill and bury all processes below this one."""
    while below := descendants(os.getpid()):
        for pid in below:
            kill(pid)
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
