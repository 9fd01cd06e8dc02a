"""Terminal and JSON output of a traced command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from penstock.archive.traces.trace_tables import first_of_path
from penstock.console import Console
from penstock.errors import printable
from penstock.observe.trace.capture.hot_set import describe
from penstock.observe.trace.capture.salvage import what_is_missing, what_layers_miss
from penstock.observe.trace.capture.session import Traced
from penstock.observe.trace.show.closing_sentence import of_paths
from penstock.observe.trace.show.table import (
    WIDEST,
    by_time,
    file_table,
    print_table,
    shown,
    width,
)
from penstock.text import COLUMNS, basis_text, counted, labelled, signed_percent, wrapped

if TYPE_CHECKING:
    from penstock.analyse.findings.finding import Finding

_FINDINGS = 3


def as_document(traced: Traced, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """The JSON of `penstock trace --json`."""
    receipt = traced.result.receipt
    layers = receipt.get("layers") or {}
    return {
        "command": [] if traced.anonymous else traced.argv,
        "exit_status": traced.exit_status,
        "wall_s": traced.wall_s,
        "interrupted": traced.interrupted,
        "outlived": traced.outlived,
        "mode": traced.mode,
        "files": file_rows(traced),
        "seen": receipt["seen"],
        "kept": receipt["kept"],
        "filtered": receipt["filtered"],
        "lost_events": receipt["lost"],
        "lost_below": layers.get("lost"),
        "overhead": {
            "added_ns_per_call": receipt["added_ns_per_call"],
            "added_ns_basis": receipt["added_ns_basis"],
            "added_share": receipt["added_share"],
            "tracer_cpu_ns": receipt["cpu_ns"],
            "tracer_cpu_share": receipt["tracer_cpu_share"],
            "hooks": receipt["hooks"],
            "ring_bytes": receipt["ring_bytes"],
            "per_probe": receipt["per_probe"],
            "paired": receipt.get("paired"),
        },
        "hot": receipt.get("hot"),
        "incomplete": what_is_missing(receipt) or None,
        "incomplete_below": what_layers_miss(layers) or None,
        "closing": traced.result.closing,
        "findings": [asdict(finding) for finding in findings],
        "bundle": str(traced.bundle) if traced.bundle else None,
    }


def file_rows(traced: Traced) -> list[dict[str, Any]]:
    """One row per path, most time first; `files` is the number of files."""
    first_of = first_of_path(dict(_paths(traced)))
    counts = Counter(first_of.values())
    files = {row["file_id"]: row for row in traced.result.tables["files"].to_pylist()}
    names = _further_names(traced)
    rows: dict[int, dict[str, Any]] = {}
    most: dict[tuple[int, str], int] = {}
    for judged in [*traced.result.verdicts, *traced.result.flushes]:
        number, direction = judged["file_id"], judged["direction"]
        number = first_of.get(number, number)
        file = files.get(number, {})
        row = rows.setdefault(
            number,
            {
                "path": file.get("path"),
                "files": counts[number] or 1,
                "names": names.get(number, []),
                "dev_major": file.get("dev_major"),
                "dev_minor": file.get("dev_minor"),
                "inode": file.get("inode"),
                "size_bytes": file.get("size_bytes"),
                "disk_id": file.get("disk_id"),
                **dict.fromkeys(("reads", "writes", "read_bytes", "written_bytes"), 0),
                **dict.fromkeys(("read_time_ns", "write_time_ns", "errors"), 0),
                **dict.fromkeys(("flushes", "flush_time_ns"), 0),
                "read_pattern": None,
                "write_pattern": None,
                "read_evidence": None,
                "write_evidence": None,
                "joint_pattern": None,
                "joint_evidence": None,
            },
        )
        if direction == "sync":
            row["flushes"] += judged["calls"]
            row["flush_time_ns"] += judged["time_ns"]
            continue
        writing = direction == "write"
        row["writes" if writing else "reads"] += judged["calls"]
        row["written_bytes" if writing else "read_bytes"] += judged["done_bytes"]
        row[f"{direction}_time_ns"] += judged["time_ns"]
        row["errors"] += judged["errors"]
        # verdicts may differ in basis: the one on most calls is shown
        if judged["calls"] >= most.get((number, direction), 0):
            most[number, direction] = judged["calls"]
            row[f"{direction}_pattern"] = judged["together"]["class"]
            row[f"{direction}_evidence"] = _evidence(judged)
            both = judged.get("both")
            if both:
                row["joint_pattern"] = both["class"]
                row["joint_evidence"] = {k: v for k, v in both.items() if k != "class"}
    spent = ("read_time_ns", "write_time_ns", "flush_time_ns")
    return sorted(rows.values(), key=lambda row: -sum(row[name] for name in spent))


def _further_names(traced: Traced) -> dict[int, list[str]]:
    """Links by which files were opened or created, other than the path of their first use."""
    names: dict[int, list[str]] = {}
    table = traced.result.tables.get("file_names")
    for row in table.to_pylist() if table is not None else []:
        if row["kind"] == "link" and row["path"] not in names.get(row["file_id"], []):
            names.setdefault(row["file_id"], []).append(row["path"])
    return names


def _evidence(judged: Mapping[str, Any]) -> dict[str, Any]:
    together = {key: value for key, value in judged["together"].items() if key != "class"}
    threads: dict[str, int] = {}
    for thread in judged["threads"]:
        threads[thread["class"]] = threads.get(thread["class"], 0) + 1
    return together | {"threads": threads, "basis": basis_text(judged["basis"])}


def show(traced: Traced, findings: Sequence[Finding] = ()) -> None:
    """Print the answer, its points and the table of files on stdout. Tables are truncated only on a
    terminal."""
    fit = width()
    console = Console(width=fit or WIDEST)
    columns = fit or COLUMNS
    for line in wrapped(printable(traced.result.closing), columns):
        console.print(Text(line))
    console.print()
    for label, text in _points(traced, findings):
        style = "bold red" if label == "Lost" else ""
        for line in labelled(label, printable(text), columns):
            console.print(Text(line), style=style)
    console.print()
    paths = dict(_paths(traced))
    rows = by_time(of_paths([*traced.result.verdicts, *traced.result.flushes], paths))
    most = shown(rows)
    print_table(file_table(most, paths, fit=fit))
    rest = len(rows) - len(most)
    if rest > 0:
        console.print(f"and {rest} with less (--json or -o gives all)", style="dim")
    receipt = traced.result.receipt
    if receipt.get("hot"):
        console.print(Text(describe(receipt)))
    if traced.interrupted:
        console.print(Text(f"ended early by {traced.interrupted}"), style="bold")
    if traced.outlived:
        console.print(
            Text(f"{traced.outlived} processes outlived the command; they were ended with it"),
            style="bold",
        )
    if traced.bundle:
        console.print(Text(f"bundle: {traced.bundle}"), style="dim")


def _points(traced: Traced, findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """Label and text of each point: causes and remedies by the findings, lost events, overhead."""
    for finding in findings[:_FINDINGS]:
        yield "Why", f"{finding.statement} ({finding.code})"
        if finding.what_to_do:
            yield "Remedy", finding.what_to_do
    receipt = traced.result.receipt
    if lost := receipt["lost"]:
        yield "Lost", f"{counted(lost, 'event')} of {receipt['seen']:,}."
    yield "Overhead", _overhead(receipt)


def _overhead(receipt: Mapping[str, Any]) -> str:
    """The time that tracing added: measured by pairs of runs, else estimated from the calls."""
    cost = f"{receipt['seen']:,} events, {receipt['cpu_ns'] / 1e6:.0f} ms of processor time"
    paired = receipt.get("paired")
    if not paired:
        return f"tracing added about {100 * receipt['added_share']:.2g} % ({cost})."
    low, share, high = (signed_percent(paired[name], 2) for name in ("low", "share", "high"))
    return (
        f"tracing added {share} ({low} to {high}) by {paired['pairs']} pairs of runs; "
        f"less than {100 * paired['limit']:.1f} %: {paired['verdict']} ({cost})."
    )


def _paths(traced: Traced) -> list[tuple[int, str | None]]:
    files = traced.result.tables["files"]
    return list(
        zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True)
    )
