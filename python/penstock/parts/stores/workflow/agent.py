"""Run the tasks of one client node: fork a process for each, which executes the task's operations, or starts
its program and waits for it.

Started inside the node by its path, standard library only. Reads tasks as JSON lines on stdin; writes a line
for each that ends, with times of CLOCK_MONOTONIC, which all nodes of a host share. A crashed task has a line
with the cause. `{"cancel": TASK}` kills a task, `{"ping": …}` is repeated. At the end of stdin, running tasks
are killed.

With a `journal`, stderr is a file to which each task's process appends the answer of a program that
succeeded before anybody else receives it: a program that has ended with status 0 is not run again.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import select
import shutil
import signal
import time
from typing import Any

BLOCK = 1 << 20
PR_SET_PDEATHSIG = 1
#: longest wait for the status of a process that closed its pipe, and for tasks after the end of stdin [s]
REAP_WITHIN_S, END_WITHIN_S = 2.0, 10.0
#: most bytes of each output of a program that are returned: half from its beginning, half from its end
MOST_OUTPUT = 64 * 1024
#: bytes of one file below which a full store has no room for it
NO_SPACE = 64 * 1024


class Child:
    """Process of one task, and its partial answer."""

    def __init__(self, task: dict[str, Any], pid: int, begin_ns: int) -> None:
        self.task, self.pid, self.text, self.begin_ns = task, pid, b"", begin_ns

    def answer(self) -> bytes:
        """Its own answer, else one with the cause of its death."""
        how = ended(self.pid)
        if self.text.endswith(b"\n"):
            return self.text
        died = {**echoed(self.task), "forked_ns": self.begin_ns, "started_ns": self.begin_ns}
        died |= {"ended_ns": time.monotonic_ns(), "operations": [], "error": how}
        return json.dumps(died).encode() + b"\n"


def echoed(task: dict[str, Any]) -> dict[str, Any]:
    """Name of a task, and what the answer repeats of its line."""
    return {"task": task["task"], **task.get("echo", {})}


def main() -> None:
    """Run tasks until stdin ends."""
    content = os.urandom(BLOCK)
    poller, children, rest = select.poll(), dict[int, Child](), b""
    poller.register(0, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            piece = os.read(fd, 1 << 16)
            if fd in children:
                children[fd].text += piece
                if not piece:
                    poller.unregister(fd)
                    os.close(fd)
                    put(1, children.pop(fd).answer())
            elif piece:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    task = json.loads(line)
                    if "ping" in task:
                        put(1, line + b"\n")
                        continue
                    if "cancel" in task:
                        cancel(children.values(), task["cancel"])
                        continue
                    reads, child = start(task, content)
                    children[reads] = child
                    poller.register(reads, select.POLLIN)
            else:
                end(list(children.values()))
                return


def cancel(children: Any, name: str) -> None:
    """Kill the processes of a task."""
    for child in children:
        if child.task["task"] == name:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)


def end(children: list[Child]) -> None:
    """Kill all tasks; one whose program has already succeeded may complete its entry in the journal."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM if "argv" in child.task else signal.SIGKILL)
    until = time.monotonic() + END_WITHIN_S
    for child in children:
        while time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(child.pid, os.WNOHANG)[0]:
                    time.sleep(0.005)
                    continue
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def start(task: dict[str, Any], content: bytes) -> tuple[int, Child]:
    """Fork the process of a task; returns the pipe of its answer."""
    reads, writes = os.pipe()
    agent, begin_ns = os.getpid(), time.monotonic_ns()
    pid = os.fork()
    if pid:
        os.close(writes)
        return reads, Child(task, pid, begin_ns)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    time.sleep(task.get("launch_s", 0.0))
    answer = {**echoed(task), "forked_ns": begin_ns, "started_ns": time.monotonic_ns()}
    answer |= {"operations": [], "error": ""}
    try:
        if "argv" in task:
            run_program(task, answer)
        else:
            run(task, content, answer["operations"])
            answer["outputs"] = {p: output(p, task) for p in task.get("outputs", ())}
    except OSError as error:
        answer["error"] = f"{error.filename or task['task']}: {error.strerror}"
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer.setdefault("ended_ns", time.monotonic_ns())
    if answer["error"] and "argv" in task:
        answer["error"] += full(task["cwd"])
    for path in task.get("partial", ()) if answer["error"] else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
    if task.get("journal") and not answer["error"]:
        texts = ("stdout", "stderr")
        line = {k: v for k, v in answer.items() if k not in texts}
        put(2, (json.dumps(line) + "\n").encode())
        os.fdatasync(2)
    put(writes, (json.dumps(answer) + "\n").encode())
    os._exit(0)


def run_program(task: dict[str, Any], answer: dict[str, Any]) -> None:
    """Run a task's program to its end, then check its outputs and have the store write them."""
    os.chdir(task["cwd"])
    for path in task["outputs"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    program = Program(task)
    answer["started_ns"] = program.started_ns
    status = program.ended()
    answer["ended_ns"] = time.monotonic_ns()
    answer["status"], answer["stdout"], answer["stderr"] = status, *program.texts()
    if status:
        lines = answer["stderr"].split("\n") + answer["stdout"].split("\n")
        said = next((line for line in lines[::-1] if line.strip()), "")
        said = next((one for one in answer["stderr"].split("\n")[::-1] if one.strip()), said)
        answer["error"] = f"{task['argv'][0]}: {end_of(status)}" + (
            f": {said[:300]}" if said else ""
        )
        return
    answer["outputs"] = {p: output(p, task) for p in task["outputs"]}
    missing = [p for p, facts in answer["outputs"].items() if facts is None]
    if missing:
        names = ", ".join(os.path.relpath(p) for p in missing[:3])
        answer["error"] = f"{task['argv'][0]} ended with status 0, without its output {names}"
    answer["stored_ns"] = time.monotonic_ns()


class Program:
    """Program of a task, in a session of its own; its outputs are read while it runs."""

    def __init__(self, task: dict[str, Any]) -> None:
        """Start it. OSError if it cannot be executed."""
        outs, (reads, writes) = (os.pipe(), os.pipe()), os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(outs[0][1], 1)
                os.dup2(outs[1][1], 2)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvpe(task["argv"][0], task["argv"], {**os.environ, **task["env"]})
            except OSError as error:
                put(writes, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(writes)
        for _, other in outs:
            os.close(other)
        self._ends = False
        signal.signal(signal.SIGTERM, self._stop)
        failed = os.read(reads, 16)  # ends when the program is executed
        self.started_ns = time.monotonic_ns()
        os.close(reads)
        if failed:
            os.waitpid(self.pid, 0)
            raise OSError(int(failed), os.strerror(int(failed)), task["argv"][0])
        self._fds = [fd for fd, _ in outs]
        self._heads, self._tails, self._dropped = [b"", b""], [b"", b""], [0, 0]

    def _stop(self, *_: Any) -> None:
        """Kill the program, unless it has ended."""
        if not self._ends:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self) -> int:
        """Status once it has ended (negative: a signal); processes that it started are killed."""
        handle, poller = os.pidfd_open(self.pid), select.poll()
        for fd in (handle, *self._fds):
            poller.register(fd, select.POLLIN)
        running = True
        while running:
            for fd, _ in poller.poll():
                if fd == handle:
                    running = False
                elif not self._take(fd):
                    poller.unregister(fd)
        self._ends = True
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for fd in self._fds:
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                while self._take(fd):
                    pass
        return status

    def _take(self, fd: int) -> bool:
        """Read a piece of output; its beginning and its end are retained. False at its end."""
        piece, n, half = os.read(fd, 1 << 16), self._fds.index(fd), MOST_OUTPUT // 2
        more = bool(piece)
        fits = half - len(self._heads[n])
        self._heads[n], piece = self._heads[n] + piece[:fits], piece[fits:]
        tail = self._tails[n] + piece
        self._dropped[n] += max(0, len(tail) - half)
        self._tails[n] = tail[-half:]
        return more

    def texts(self) -> tuple[str, str]:
        """Its standard output and its standard error output."""
        texts = []
        for head, tail, dropped in zip(self._heads, self._tails, self._dropped, strict=True):
            gap = f"\n[{dropped} bytes omitted]\n" if dropped else ""
            texts.append(head.decode(errors="replace") + gap + tail.decode(errors="replace"))
        return texts[0], texts[1]


def output(path: str, task: dict[str, Any]) -> list[Any] | None:
    """Bytes, modification time as text and, on request, SHA-256 of an output; None if it is absent.

    The store has all of it then. Unless the node's cache is to keep it, its pages are dropped.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        os.fsync(fd)
        if not task["keep_cache"]:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        facts = os.fstat(fd)
        sha256 = None
        if task.get("checksums"):
            digest = hashlib.sha256()
            while piece := os.read(fd, BLOCK):
                digest.update(piece)
            sha256 = digest.hexdigest()
        seconds, nanoseconds = divmod(facts.st_mtime_ns, 10**9)
        return [facts.st_size, f"{seconds}.{nanoseconds:09d}0", sha256]
    finally:
        os.close(fd)


def full(place: str) -> str:
    """A remark for an error if the store is full."""
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return ""
    return f" (the store is full: {free:,} bytes are free)" if free < NO_SPACE else ""


def end_of(status: int) -> str:
    """End of a program, as text."""
    if status < 0:
        return f"killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"


def ended(pid: int) -> str:
    """End of a process, as text."""
    until = time.monotonic() + REAP_WITHIN_S
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    while not ended_pid and time.monotonic() < until:
        time.sleep(0.005)
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process {pid} was killed by signal {number} ({signal.Signals(number).name})"
    if ended_pid:
        return f"its process {pid} ended with status {os.waitstatus_to_exitcode(status)}, without an answer"
    return f"its process {pid} died"


def put(fd: int, text: bytes) -> None:
    """Write all bytes."""
    while text:
        text = text[os.write(fd, text) :]


def run(task: dict[str, Any], content: bytes, done: list[tuple[int, int, int]]) -> None:
    """Run the operations of one task in order, and record start and end of each."""
    for number, operation in enumerate(task["operations"]):
        begin = time.monotonic_ns()
        act(operation, task["keep_cache"], content)
        done.append((number, begin, time.monotonic_ns()))


def act(operation: dict[str, Any], keep_cache: bool, content: bytes) -> None:
    """Run one operation. Closing flushes: at its end the store has all writes."""
    op, path = operation["op"], str(operation.get("path"))
    if op == "compute":
        time.sleep(operation["seconds"])
    elif op == "open":
        os.close(os.open(path, os.O_RDONLY))
    elif op == "read":
        fd = os.open(path, os.O_RDONLY)
        with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
            read(fd, operation["offset_bytes"], operation["size_bytes"], path)
    elif op == "write":
        fd = opened(path)
        try:
            write(fd, operation["offset_bytes"], operation["size_bytes"], content)
            if not keep_cache:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    elif op == "set_xattr":
        if not os.path.exists(path):
            os.close(opened(path))
        for name, value in operation["attributes"].items():
            os.setxattr(path, name, value.encode())


def opened(path: str) -> int:
    """Open a file for writing; creates it and its directory if absent."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    except FileExistsError:  # MooseFS reports this for a concurrent creation by another client
        return os.open(path, os.O_WRONLY)


def read(fd: int, at: int, remaining: int, path: str) -> None:
    """Read all requested bytes; a shorter file is an error."""
    while remaining:
        got = len(os.pread(fd, min(BLOCK, remaining), at))
        if not got:
            raise OSError(0, f"ends at {at} bytes, {remaining} before what is to be read", path)
        at, remaining = at + got, remaining - got


def write(fd: int, at: int, remaining: int, content: bytes) -> None:
    """Write incompressible bytes."""
    while remaining:
        put = os.pwrite(fd, content[: min(BLOCK, remaining)], at)
        at, remaining = at + put, remaining - put


if __name__ == "__main__":
    main()
