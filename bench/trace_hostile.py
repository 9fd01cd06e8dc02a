"""Traces under hostile conditions: very many files, any bytes in names, full disks, killed tracers, invalid
bundles.

Each case runs the real command line and compares the result with the known one; a row has the outcome.
Planted failure: the first case with dropped events, which must be reported. Exit status 1 if it is not, or if
a case is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.observe.trace.capture.names import readable

COMMAND = [sys.executable, "-m", "penstock"]
Word = str | bytes | Path

MANY = """
import os, sys
where, files = sys.argv[1], int(sys.argv[2])
os.makedirs(where)
for i in range(files):
    fd = os.open(f"{where}/{i}", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(4096))
    for k in range(4):
        os.pread(fd, 512, 512 * k)
    os.close(fd)
"""
READ = """
import os, sys
for path in sys.argv[2:]:
    fd = os.open(os.fsencode(path), os.O_RDONLY)
    for i in range(int(sys.argv[1])):
        os.pread(fd, 512, 512 * (i % 64))
"""
KILLER = """
import os, signal, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
for i in range(1000):
    os.pread(fd, 512, 512 * (i % 64))
time.sleep(1)
above = os.getppid()
for pid in open(f"/proc/{above}/task/{above}/children").read().split():
    if open(f"/proc/{pid}/comm").read().strip() == "penstock-tracer":
        os.kill(int(pid), signal.SIGKILL)
time.sleep(0.2)
sys.exit(7)
"""
MOUNT = 'mount -t tmpfs -o size=3m,mode=700 none "$0" && exec "$@"'


class WrongError(Exception):
    """A case did not end as expected."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise WrongError(message)


def run(*options: Word, status: int = 0, before: tuple[Word, ...] = (), **env: str) -> Any:
    """Run the command line; return its stdout."""
    result = subprocess.run(
        [*before, *COMMAND, *options], capture_output=True, env={**os.environ, **env}, timeout=900
    )
    message = result.stderr.decode(errors="replace")
    check(result.returncode == status, f"status {result.returncode}: {message[-300:]}")
    check("Traceback" not in message, message[-300:])
    return result.stdout


def traced(*argv: Word, options: tuple[Word, ...] = (), **run_options: Any) -> dict[str, Any]:
    return dict(json.loads(run("trace", "--json", *options, "--", *argv, **run_options)))


def balanced(report: dict[str, Any]) -> bool:
    return bool(report["seen"] == report["kept"] + report["filtered"] + report["lost_events"])


def many_files(work: Path, files: int, planted: bool = False) -> str:
    """Trace more files than mode pattern stores in the kernel (65,536 sequences)."""
    data = work / ("planted" if planted else "many")
    options = ("-m", "trace", "--drop-every", "1000") if planted else ("-m", "pattern")
    began = time.monotonic()
    report = traced(sys.executable, "-c", MANY, data, str(files), options=options)
    total_s = time.monotonic() - began
    rows = [row for row in report["files"] if (row["path"] or "").startswith(f"{data}/")]
    reads, writes = (sum(row[name] for row in rows) for name in ("reads", "writes"))
    check(balanced(report), "the receipt does not balance")
    check(
        (report["lost_events"], len(rows), reads, writes) == (0, files, 4 * files, files),
        f"lost {report['lost_events']}; {len(rows)} files, {reads} reads, {writes} writes",
    )
    return f"nothing lost; command {report['wall_s']:.1f} s, all {total_s:.1f} s"


def target(work: Path) -> Path:
    path = work / "target"
    path.write_bytes(bytes(1 << 20))
    return path


def spool(work: Path, limited: bool) -> str:
    state = work / ("limited" if limited else "full")
    state.mkdir()
    before: tuple[Word, ...] = ("prlimit", "--fsize=3000000")
    if not limited:
        before = ("unshare", "-m", "sh", "-c", MOUNT, state)
    argv = (sys.executable, "-c", READ, "200000", target(work))
    report = traced(*argv, options=("-m", "trace"), before=before, PENSTOCK_STATE=str(state))
    check(balanced(report), "the receipt does not balance")
    check(report["incomplete"] and report["lost_events"] > 0, "no loss is reported")
    return f"{report['kept']} kept, {report['lost_events']} lost: {report['incomplete'].split(': ')[-1]}"


def killed(work: Path, mode: str) -> str:
    argv = (sys.executable, "-c", KILLER, target(work))
    report = traced(*argv, options=("-m", mode), status=7)
    check(report["incomplete"] and report["exit_status"] == 7, "not reported")
    return f"status 7 is the command's; {report['kept']} kept; {report['incomplete']}"


def odd_names(work: Path) -> list[bytes]:
    """A newline, quotes, bytes that are not UTF-8, markup, and the longest path that can be opened."""
    top = os.fsencode(work / "odd")
    names = [
        top + b"/" + name for name in (b"n\nl", b"q'\"`$(x)", b"\xff\xfe", b"<b>&amp;", b" -o ")
    ]
    deepest = top
    while len(deepest) + 202 < 4095:
        deepest += b"/" + b"d" * 200
    names.append(deepest + b"/" + b"f" * (4094 - len(deepest)))
    for name in names:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(bytes(65536))
    return names


def names(work: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    bundle, as_text = work / "T", readable

    def trace() -> str:
        paths = odd_names(work)
        report = traced(
            *(sys.executable, "-c", READ, "200", *paths), options=("-m", "trace", "-o", bundle)
        )
        reads = {row["path"]: row["reads"] for row in report["files"]}
        check(
            all(reads.get(as_text(path)) == 200 for path in paths), f"{sorted(map(str, reads))[:3]}"
        )
        return f"{len(paths)} files, the longest of {max(map(len, paths))} bytes, 200 reads each"

    def verb(*options: Word, status: int = 0) -> Callable[[], str]:
        return lambda: f"{len(run(*options, status=status))} bytes on stdout"

    yield "trace", trace
    yield "report", verb("report", bundle)
    yield "plot", verb("plot", bundle, "offsets", "-o", work / "x.svg")
    yield "analyse", verb("analyse", bundle)
    for form in ("json", "jsonl", "perfetto", "paraver", "fio"):
        yield f"export {form}", verb("export", bundle, form, "-o", work / f"out-{form}")
    yield "compare", verb("compare", bundle, bundle)
    yield "replay", verb("replay", bundle, "--on", work)


def bad_bundles(work: Path) -> str:
    """Truncated, foreign and empty tables: one line and status 2, by every verb that reads one."""
    valid, seen = work / "T", 0
    for defect in ("cut", "foreign", "no manifest"):
        broken = work / "bad"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(valid, broken)
        if defect == "cut":
            os.truncate(broken / "io_events.parquet", 1000)
        elif defect == "foreign":
            (broken / "io_events.parquet").write_bytes(b"PK\x03\x04 something else")
        else:
            (broken / "manifest.json").unlink()
        for command in (
            ("report", broken),
            ("export", broken, "json", "-o", work / "no"),
            ("compare", broken, valid),
        ):
            result = subprocess.run(
                [*COMMAND, *command], capture_output=True, text=True, timeout=120
            )
            lines = result.stderr.splitlines()
            check(
                result.returncode == 2 and len(lines) == 1,
                f"{defect}, {command[0]}: {result.stderr[-300:]}",
            )
            seen += 1
    return f"{seen} times one line and status 2"


def cases(work: Path, files: int) -> Iterator[tuple[str, Callable[[], str]]]:
    yield f"{files:,} files, mode pattern", lambda: many_files(work, files)
    yield "spool: disk full", lambda: spool(work, False)
    yield "spool: RLIMIT_FSIZE", lambda: spool(work, True)
    for mode in ("trace", "pattern", "count"):
        yield f"tracer killed, mode {mode}", lambda mode=mode: killed(work, mode)
    for verb, do in names(work):
        yield f"odd and long names: {verb}", do
    yield "bad bundles", lambda: bad_bundles(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="2,000 files instead of 100,000")
    record.option(parser)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-hostile-") as name:
        for case, do in cases(Path(name), 2000 if arguments.quick else 100_000):
            try:
                passed, result = True, do()
            except (WrongError, OSError, ValueError, subprocess.SubprocessError) as error:
                passed, result = False, str(error).strip().replace("\n", " | ")
            rows.append({"case": case, "good": passed, "result": result})
            if not arguments.json:
                print(f"{'ok   ' if passed else 'WRONG'} {case:<40} {result}", flush=True)
        try:
            outcome = f"NOT FOUND: {many_files(Path(name), 2000, planted=True)}"
        except WrongError as error:
            outcome = f"found: {error}"
    if arguments.json:
        print(json.dumps({"rows": rows}))
    print(f"planted, one event in a thousand dropped: {outcome}", file=sys.stderr)
    record_rows = [
        record.claim(str(r["case"]), "", str(r["result"]), "as known", r["good"]) for r in rows
    ]
    planted = outcome.startswith("found")
    record.keep(arguments.record, record_rows, {"one event in a thousand dropped": planted})
    return 0 if planted and all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
