"""Public files of other programs: those that importers read, refuse with a reason, or fail on.

    bench/imports.py DIR ... [--quick] [--record]

Searches directories (such as clones of public repositories) for platforms of SimGrid and Distem, workflow
instances, and traces of blktrace, Darshan and fio, and passes every file to its importer. Any other outcome
than a result or a refusal with a reason is a failure. Planted failure: a copy of a file that is truncated in
the middle. Exit status 1 if a file failed, or if the truncated file was read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.errors import BadInput
from penstock.observe.trace.recordings.importers import import_trace
from penstock.parts.interchange.from_distem import read_distem
from penstock.parts.interchange.from_simgrid import read_simgrid
from penstock.parts.prediction.workloads.read import read_workload

#: limit of the size of a file
MOST_BYTES = 64 << 20
#: files of each kind with --quick
FEW = 20


def simgrid(path: Path) -> None:
    read_simgrid(path, path.read_bytes()).platform(path.parent)


def distem(path: Path) -> None:
    read_distem(path, path.read_bytes()).platform(path.parent)


def workflow(path: Path) -> None:
    read_workload(path)


def trace(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-imports-") as folder:
        import_trace([path], Path(folder) / "bundle")


def kind_of(path: Path) -> tuple[str, Callable[[Path], None]] | None:
    """Kind of a file by its first bytes, with the importer."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if path.suffix == ".xml" and b"<platform" in head and b"<actor" not in head:
        return "platform of SimGrid", simgrid
    if path.suffix == ".json" and b'"vplatform"' in head:
        return "platform of Distem", distem
    if path.suffix == ".json" and b'"workflow"' in head and b'"schemaVersion"' in head:
        return "workflow instance", workflow
    if head.startswith(b"# darshan log version") and b"DXT" in head:
        return "text of darshan-dxt-parser", trace
    if head.startswith(b"fio version") and b"iolog" in head[:32]:
        return "iolog of fio", trace
    if head[1:4] == b"\x74\x61\x65":
        return "blktrace", trace
    return None


def files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and 0 < path.stat().st_size <= MOST_BYTES:
                yield path


def outcome(read: Callable[[Path], None], path: Path) -> str:
    """`read`, `refused: REASON` without names and numbers of the file, or `failed: EXCEPTION`."""
    try:
        read(path)
    except BadInput as error:
        reason = str(error).splitlines()[0]
        return f"refused: {reason.split('found ', 1)[-1][:90]}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:160]
    return "read"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help=f"{FEW} files of each kind at most")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    chosen = parser.parse_args()
    outcomes: dict[str, Counter[str]] = {}
    planted: dict[str, bool] = {}
    for path in files(chosen.folders):
        kind_and_reader = kind_of(path)
        if kind_and_reader is None:
            continue
        kind, read = kind_and_reader
        counts = outcomes.setdefault(kind, Counter())
        if chosen.quick and counts.total() >= FEW:
            continue
        result = outcome(read, path)
        counts[result] += 1
        if result.startswith("failed"):
            print(f"{path}: {result}", file=sys.stderr)
        if result == "read" and kind not in planted:
            with tempfile.TemporaryDirectory(prefix="penstock-imports-") as folder:
                torn = Path(folder) / path.name
                torn.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 7])
                planted[kind] = outcome(read, torn).startswith("refused")
    rows = []
    about = []
    for kind, counts in sorted(outcomes.items()):
        total = counts.total()
        failed = sum(n for result_text, n in counts.items() if result_text.startswith("failed"))
        rows.append(record.share(kind, "", "read or refused with a reason", total - failed, total))
        rows.append(
            {
                "case": kind,
                "engine": "",
                "metric": "read",
                "value": f"{counts['read']} of {total}",
                "unit": "",
                "n": total,
            }
        )
        about += [
            f"{kind}: {n} {result_text}"
            for result_text, n in counts.most_common()
            if result_text != "read"
        ]
    if not rows:
        print(
            "found no file of a known kind; expected clones of public repositories", file=sys.stderr
        )
        return 2
    plants = {f"half of a {kind}": refused for kind, refused in planted.items()}
    status = record.report(rows, plants, as_json=chosen.json)
    print("\n".join(about), file=sys.stderr)
    record.keep(chosen.record, rows, plants, "; ".join(about[:12]))
    return status


if __name__ == "__main__":
    sys.exit(main())
