"""Run the tasks of one client node: start its program, in a thread that waits for it; or fork a process that
executes the task's operations.

Started inside the node (`node_script`), standard library only. Reads tasks as JSON lines on stdin; writes a
line for each that ends, with times of CLOCK_MONOTONIC, which all nodes of a host share, less the task's
`clock_ns`. A crashed task has a line with the cause. `{"cancel": TASK}` kills a task, `{"ping": …}` is
repeated with the time. At the end of stdin, running tasks are killed.

With a `journal`, stderr is a file to which the answer of a task that succeeded is appended before anybody
else receives it: a program that has ended with status 0 is not run again. On another host it is a pipe to
the runner, which appends the answer.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import threading
import time
from typing import Any

from penstock.parts.stores.node_processes import MARK, Output, kill, kill_job, new_mark

#: a task, an operation or an answer, as a JSON object
Message = dict[str, Any]

BLOCK = 1 << 20
PR_SET_PDEATHSIG = 1
#: longest wait for the status of a process that closed its pipe, and for programs that were killed [s]
REAP_WITHIN_S, END_WITHIN_S = 2.0, 10.0
#: bytes of one file below which a full store has no room for it
NO_SPACE = 64 * 1024


#: for stdout
writing = threading.Lock()


class Child:
    """Process of one task, and its partial answer."""

    def __init__(self, task: Message, pid: int, begin_ns: int) -> None:
        self.task, self.pid, self.text, self.begin_ns = task, pid, b"", begin_ns

    def answer(self) -> bytes:
        """Its own answer, else one with the cause of its death."""
        how = ended(self.pid)
        if self.text.endswith(b"\n"):
            return self.text
        died = {**echoed(self.task), "forked_ns": self.begin_ns, "started_ns": self.begin_ns}
        died |= {"ended_ns": time.monotonic_ns(), "operations": [], "error": how}
        shift(died, self.task.get("clock_ns", 0))
        return json.dumps(died).encode() + b"\n"


def echoed(task: Message) -> Message:
    """Name of a task, and what the answer repeats of its line."""
    return {"task": task["task"], **task.get("echo", {})}


def main() -> None:
    """Run tasks until stdin ends."""
    content = os.urandom(BLOCK)
    poller, children, programs, rest = select.poll(), dict[int, Child](), list[Program](), b""
    poller.register(0, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            piece = os.read(fd, 1 << 16)
            if fd in children:
                children[fd].text += piece
                if not piece:
                    poller.unregister(fd)
                    os.close(fd)
                    answer(children.pop(fd).answer())
                continue
            programs = [one for one in programs if one.is_alive()]
            if not piece:
                end(list(children.values()), programs)
                os._exit(0)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                task = json.loads(line)
                if "ping" in task:
                    answer(json.dumps({**task, "now_ns": time.monotonic_ns()}).encode() + b"\n")
                elif "cancel" in task:
                    cancel(children.values(), programs, task["cancel"])
                elif "argv" in task:
                    programs.append(Program(task))
                    programs[-1].start()
                else:
                    reads, child = start(task, content)
                    children[reads] = child
                    poller.register(reads, select.POLLIN)


def answer(line: bytes) -> None:
    """Write a line to the runner, unless it has died."""
    with writing, contextlib.suppress(BrokenPipeError):
        put(1, line)


def shift(result: Message, clock_ns: int) -> None:
    """Convert the times of an answer to the clock of the runner, from which ours differs by `clock_ns`."""
    for key in ("forked_ns", "started_ns", "ended_ns", "stored_ns"):
        if key in result:
            result[key] -= clock_ns
    times = result["operations"]
    result["operations"] = [(n, begin - clock_ns, end - clock_ns) for n, begin, end in times]


def cancel(children: Any, programs: Any, name: str) -> None:
    """Kill the processes of a task."""
    for child in children:
        if child.task["task"] == name:
            kill(child.pid)
    for program in programs:
        if program.task["task"] == name:
            program.task["partial"] = []  # the next attempt may have created them anew
            program.kill()


def end(children: list[Child], programs: Any) -> None:
    """Kill all tasks; one whose program has already succeeded may complete its entry in the journal."""
    for child in children:
        kill(child.pid)
    for program in programs:
        program.kill()
    until = time.monotonic() + END_WITHIN_S
    for program in programs:
        program.join(max(0.0, until - time.monotonic()))


def start(task: Message, content: bytes) -> tuple[int, Child]:
    """Fork the process of a task without a program; returns the pipe of its answer."""
    (reads, writes), agent, begin_ns = os.pipe(), os.getpid(), time.monotonic_ns()
    pid = os.fork()
    if pid:
        os.close(writes)
        return reads, Child(task, pid, begin_ns)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    time.sleep(task.get("launch_s", 0.0))
    result = {**echoed(task), "forked_ns": begin_ns, "started_ns": time.monotonic_ns()}
    result |= {"operations": [], "error": ""}
    try:
        run(task, content, result["operations"])
        result["outputs"] = {p: output(p, task) for p in task.get("outputs", ())}
    except OSError as error:
        result["error"] = f"{error.filename or task['task']}: {error.strerror}"
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    result["ended_ns"] = time.monotonic_ns()
    put(writes, recorded(task, result))
    os._exit(0)


def recorded(task: Message, result: Message) -> bytes:
    """Line of an answer. A success is in the journal then; a failure leaves no partial output."""
    shift(result, task.get("clock_ns", 0))
    if result["error"]:
        for path in task.get("partial", ()):
            with contextlib.suppress(OSError):
                os.unlink(path)
    elif task.get("journal"):
        entry = {k: v for k, v in result.items() if k not in ("stdout", "stderr")}
        put(2, (json.dumps(entry) + "\n").encode())
        if stat.S_ISREG(os.fstat(2).st_mode):  # else the connection to the host of the runner
            os.fdatasync(2)
    return (json.dumps(result) + "\n").encode()


class Program(threading.Thread):
    """Program of a task, in a session of its own; its outputs are read while it runs."""

    def __init__(self, task: Message) -> None:
        super().__init__(daemon=True)
        self.task, self._mark = task, new_mark()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = self._ended = False

    def run(self) -> None:
        """Run it to its end, and write the answer."""
        now_ns = time.monotonic_ns()
        result = {**echoed(self.task), "forked_ns": now_ns, "started_ns": now_ns}
        result |= {"operations": [], "error": ""}
        try:
            self._run(result)
        except OSError as error:
            result["error"] = f"{error.filename or self.task['task']}: {error.strerror}"
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        result.setdefault("ended_ns", time.monotonic_ns())
        if result["error"]:
            result["error"] += full(self.task["cwd"])
        try:
            line = recorded(self.task, result)
        except Exception as error:  # without an answer, the runner would wait
            result["error"] = f"its entry in the journal: {error}"
            line = (json.dumps(result) + "\n").encode()
        answer(line)

    def _run(self, result: Message) -> None:
        """Start it and wait, then check its outputs and have the store write them."""
        task, argv = self.task, self.task["argv"]
        time.sleep(task.get("launch_s", 0.0))
        for place in {os.path.dirname(path) for path in task["outputs"]} - {task["cwd"]}:
            os.makedirs(place, exist_ok=True)
        with self._changing:
            if self._killed:
                raise OSError(0, "cancelled", argv[0])
            result["forked_ns"] = time.monotonic_ns()
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=task["cwd"],
                env={**os.environ, **task["env"], MARK: self._mark},
                start_new_session=True,
                bufsize=0,
            )
            result["started_ns"] = time.monotonic_ns()
        (status, texts), result["ended_ns"] = self._wait(self._process), time.monotonic_ns()
        result["status"], result["stdout"], result["stderr"] = status, *texts
        if status:
            lines = [
                line for text in texts[::-1] for line in text.split("\n")[::-1] if line.strip()
            ]
            signalled = f"killed by signal {-status} ({signal_name(-status)})" if status < 0 else ""
            how = signalled or f"ended with status {status}"
            result["error"] = f"{argv[0]}: {how}" + (f": {lines[0][:300]}" if lines else "")
            return
        result["outputs"] = {p: output(p, task) for p in task["outputs"]}
        missing = [p for p, facts in result["outputs"].items() if facts is None]
        if missing:
            names = ", ".join(os.path.relpath(p, task["cwd"]) for p in missing[:3])
            result["error"] = f"{argv[0]} ended with status 0, without its output {names}"
        result["stored_ns"] = time.monotonic_ns()

    def kill(self) -> None:
        """Kill it with all its processes, unless it has ended."""
        with self._changing:
            self._killed = True
            if self._process is not None and not self._ended:
                kill_job(self._process.pid, self._mark)

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
        """Status once it has ended (negative: a signal), and the texts of its outputs.

        Processes that it started are killed.
        """
        files = [file for file in (process.stdout, process.stderr) if file is not None]
        outputs = {file.fileno(): Output(file.fileno()) for file in files}
        handle, poller = os.pidfd_open(process.pid), select.poll()
        for fd in (handle, *outputs):
            poller.register(fd, select.POLLIN)
        running = True
        while running:
            for fd, _ in poller.poll():
                if fd == handle:
                    running = False
                elif not outputs[fd].take():
                    poller.unregister(fd)
        with self._changing:
            self._ended = True
            kill_job(process.pid, self._mark)  # the zombie still has the number
        status = process.wait()
        for one in outputs.values():
            one.drain()
        os.close(handle)
        for file in files:
            file.close()
        return status, [one.text() for one in outputs.values()]


def output(path: str, task: Message) -> list[Any] | None:
    """Bytes, modification time as text and, on request, SHA-256 of an output; None if it is absent. A link
    is an output if its target is a file in the store.

    The store has all of it then. Unless the node's cache is to keep it, its pages are dropped.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    except FileNotFoundError:
        return None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(0, "found no regular file; expected one as an output", path)
        if facts.st_dev != os.lstat(path).st_dev:
            target = os.path.realpath(path)
            raise OSError(0, f"found a link to {target}; expected a file in the store", path)
        os.fsync(fd)
        if not task["keep_cache"]:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        facts = os.fstat(fd)
        sha256 = None
        if task.get("checksums"):
            import hashlib

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
    with contextlib.suppress(OSError):
        space = os.statvfs(place)
        free = space.f_bavail * space.f_frsize
        if free < NO_SPACE:
            return f" (the store is full: {free:,} bytes are free)"
    return ""


def ended(pid: int) -> str:
    """End of a process, as text."""
    until = time.monotonic() + REAP_WITHIN_S
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    while not ended_pid and time.monotonic() < until:
        time.sleep(0.005)
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process {pid} was killed by signal {number} ({signal_name(number)})"
    if ended_pid:
        return f"its process {pid} ended with status {os.waitstatus_to_exitcode(status)}, without an answer"
    return f"its process {pid} died"


def signal_name(number: int) -> str:
    """Name of a signal; real-time signals have none."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return "real-time"


def put(fd: int, text: bytes) -> None:
    """Write all bytes."""
    while text:
        text = text[os.write(fd, text) :]


def run(task: Message, content: bytes, done: list[tuple[int, int, int]]) -> None:
    """Run the operations of one task in order, and record start and end of each."""
    for number, operation in enumerate(task["operations"]):
        begin = time.monotonic_ns()
        act(operation, task["keep_cache"], content)
        done.append((number, begin, time.monotonic_ns()))


def act(operation: Message, keep_cache: bool, content: bytes) -> None:
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
