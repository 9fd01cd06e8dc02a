"""Losses of a trace: amounts, reasons and remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.analyse.findings.finding import Finding
from penstock.analyse.traces.traced_run import TracedRun
from penstock.text import listed, percent

#: reason for a loss, by its name in the receipt's `per_probe` (`unspooled`: in the receipt itself)
_WHY = {
    "ring_full": "there was no room in the kernel",
    "unspooled": "they could not be written to the spool",
    "no_memory": "the kernel side had no room for another file or thread",
    "unresolved": "another thread closed the descriptor during the call",
    "planted": "`--drop-every` drops them",
}


def losses(receipt: Mapping[str, Any]) -> dict[str, int]:
    """Operations lost by reason (`_WHY`), in descending order."""
    lost = dict.fromkeys(_WHY, 0)
    lost["unspooled"] = int(receipt.get("lost_unspooled") or 0)
    for counts in (receipt.get("per_probe") or {}).values():
        for name in _WHY:
            lost[name] += int(counts.get(f"lost_{name}") or 0)
    return dict(sorted(((n, c) for n, c in lost.items() if c), key=lambda item: -item[1]))


def _remedy(receipt: Mapping[str, Any], reasons: Mapping[str, int]) -> str:
    """Remedies for the losses, by their reasons and the mode."""
    mode = str(receipt.get("mode") or "trace")
    fewer = "choose fewer files (--file, --dir)"
    remedies: dict[str, str | dict[str, str]] = {
        "ring_full": {
            "trace": f"Give the kernel more room (--ring-size), {fewer}, or use --mode pattern.",
            "pattern": f"There were too many sequences at once: {fewer}, or use --mode count.",
        },
        "unspooled": f"Make room where the trace is spooled: {receipt.get('spool_failure')}.",
        "no_memory": {
            "count": f"Mode count has counters for 131,071 files: {fewer}, or use --mode pattern.",
        },
        "unresolved": "Nothing helps against this: which file they were on is not known any more.",
        "planted": "Leave out --drop-every.",
    }
    texts: list[str] = []
    for reason in reasons or {"ring_full": 0}:
        remedy = remedies[reason]
        if isinstance(remedy, dict):
            remedy = remedy.get(mode, f"{fewer[0].upper()}{fewer[1:]}.")
        texts.append(remedy)
    return " ".join(texts)


def lost(run: TracedRun) -> Iterator[Finding]:
    """Guard: no losses."""
    lost, seen = run.receipt.get("lost", 0), run.receipt.get("seen", 0)
    if lost:
        reasons = losses(run.receipt)
        why = listed([f"{count:,} because {_WHY[reason]}" for reason, count in reasons.items()])
        yield Finding(
            "trace-lost",
            "warning",
            f"{lost:,} of {seen:,} events were seen and not stored ({percent(lost / max(seen, 1))}"
            f"{f': {why}' if why else ''}); shares and verdicts are of the others.",
            {
                "manifest": {
                    "seen": seen,
                    "lost": lost,
                    "per_probe": run.receipt.get("per_probe", {}),
                }
            },
            _remedy(run.receipt, reasons),
        )
    layers = run.receipt.get("layers") or {}
    if layers.get("lost"):
        yield Finding(
            "trace-lost",
            "warning",
            f"{layers['lost']:,} of {layers['seen']:,} records of page cache and block devices were "
            "lost: misses may count as hits, and requests may be missing.",
            {"manifest": {name: layers[name] for name in ("seen", "lost")}},
            "Choose a shorter part of the run, or a machine with less other I/O; the calls "
            "themselves are complete.",
        )
    if layers.get("incomplete"):
        yield Finding(
            "trace-lost",
            "warning",
            f"What lay under the calls is incomplete: {layers['incomplete']}. What was not seen "
            "counts as a hit of the page cache.",
            {"manifest": {"incomplete": layers["incomplete"]}},
            "Trace again; the calls themselves are complete.",
        )
    without = sorted({what for what in (layers.get("missing") or {}).values() if what})
    if without:
        unseen = "mm_filemap_add_to_page_cache" in layers["missing"]
        yield Finding(
            "trace-lost",
            "warning" if unseen else "info",
            f"Below the calls, this kernel does not report: {'; '.join(without)}"
            + (": whatever was read counts as a hit of the page cache." if unseen else "."),
            {"manifest": {"missing": layers["missing"]}},
            "Take it on a kernel that has "
            + ", ".join(name for name, what in layers["missing"].items() if what)
            + ".",
        )
