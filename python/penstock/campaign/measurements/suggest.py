"""Promising factors and levels from archived studies on similar hosts, with the evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.analyse.statistics.scale import LINEAR, LOG, SCALE_TEXTS
from penstock.archive.catalogue import Catalogue, index_path
from penstock.design.show import paragraph
from penstock.errors import BadInput
from penstock.host.probe.facts import host_facts
from penstock.text import counted, listed, ratio_text, term_text

#: maximum ratio of memory sizes of similar hosts
_WITHIN = 1.25
#: significance level of an effect, after Holm
_SIGNIFICANT = 0.05
#: maximum number of studies read, latest first
_MOST_STUDIES = 500


@dataclass
class Suggestion:
    """A factor with the levels that were tried, its largest share of the variation [%], and `evidence`: rows
    of effects tables. `studies` had it; in `mattered` of them it had an effect."""

    factor: str
    levels: list[str]
    share: float = 0.0
    studies: int = 0
    mattered: int = 0
    evidence: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def suggestions(
    exclude: Sequence[str] = (), here: dict[str, Any] | None = None, index: Path | None = None
) -> list[Suggestion]:
    """Factors of archived studies on similar hosts, by descending share of a response's variation.

    Factors of `exclude` are omitted; `here` are the facts of the host in question (this one); `index` is the
    catalogue (the user's). Studies whose directory is gone are skipped.
    """
    here = here or host_facts()
    path = index or index_path()
    if not path.exists():
        return []
    with Catalogue(path) as catalogue:
        rows = sorted(catalogue.studies(), key=lambda s: -(s.last_realtime_ns or 0))[:_MOST_STUDIES]
    by_factor: dict[str, Suggestion] = {}
    for row in rows:
        out = Path(row.out)
        if (out / "effects.parquet").exists() and like(_host_of(out), here):
            _add(by_factor, out, row.study_id, exclude)
    return sorted(by_factor.values(), key=lambda s: (-s.mattered, -s.share, s.factor))


def like(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two hosts are similar: same processor and kernel series, memory within a quarter."""
    if not one or one.get("cpu_model") != other.get("cpu_model"):
        return False
    if _series(one.get("kernel")) != _series(other.get("kernel")):
        return False
    sizes = [float(h.get("memory_bytes") or 0) for h in (one, other)]
    return min(sizes) > 0 and max(sizes) / min(sizes) <= _WITHIN


def suggest_text(suggested: list[Suggestion]) -> str:
    """Suggestions for a terminal."""
    if not suggested:
        return (
            "No archived study of a host like this one has effects (`penstock ls` has the archive)."
        )
    return "\n".join(_lines(suggested))


def _lines(suggested: list[Suggestion]) -> Iterator[str]:
    for one in suggested:
        yield paragraph(
            f"{one.factor}: {listed(one.levels)}. "
            + (
                f"It mattered in {one.mattered} of {counted(one.studies, 'study', 'studies')}"
                f"{f', for at most {one.share:.0f} % of the variation' * (one.share > 0)}."
                if one.mattered
                else f"No effect in {counted(one.studies, 'study', 'studies')}."
            )
        )
        for row in one.evidence[:3]:
            amount = ", ".join(filter(None, (_effect(row), _share(row))))
            yield (
                f"    {row['study_id']}: {term_text(row['term'])} on {row['response']}"
                f"{f', {amount}' * bool(amount)} ({row['out']})"
            )


def _effect(row: Mapping[str, Any]) -> str:
    """The effect of a term, on logarithms as a ratio; empty for a term of several levels."""
    if row["effect"] is None:
        return ""
    if row["scale"] == LOG:
        return f"ratio {ratio_text(row['effect'])}"
    scale = "" if row["scale"] == LINEAR else f" on the scale of {SCALE_TEXTS[row['scale']]}"
    return f"effect {row['effect']:.4g}{scale}"


def _share(row: Mapping[str, Any]) -> str:
    """The share of the variation; empty if a study has none, as with lost treatments."""
    share = row["variation_share"]
    return "" if share is None else f"{share:.1f} % of the variation"


def _series(kernel: Any) -> str:
    return ".".join(str(kernel or "").split(".")[:2])


def _host_of(out: Path) -> dict[str, Any]:
    """Facts of the host of the first run."""
    for manifest in sorted((out / "runs").glob("*/manifest.json"))[:1]:
        try:
            host = json.loads(manifest.read_text()).get("host")
        except (OSError, ValueError, AttributeError):
            return {}
        return host if isinstance(host, dict) else {}
    return {}


def _add(
    by_factor: dict[str, Suggestion], out: Path, study_id: str, exclude: Sequence[str]
) -> None:
    from penstock.campaign.analysis import frozen_study

    try:
        plan = frozen_study(out)[1]
        table = pd.read_parquet(out / "effects.parquet")
    except (BadInput, OSError, ValueError):
        return
    for factor in plan.factors:
        if factor.name in exclude:
            continue
        suggestion = by_factor.setdefault(factor.name, Suggestion(factor.name, []))
        suggestion.studies += 1
        suggestion.levels += [v.name for v in factor.levels if v.name not in suggestion.levels]
        of_it = table[[factor.name in str(t).split(":") for t in table["term"]]]
        sure = of_it[pd.to_numeric(of_it["p_holm"], errors="coerce") < _SIGNIFICANT]
        if sure.empty:
            continue
        suggestion.mattered += 1
        rows = sure.sort_values("variation_share", ascending=False).head(3).to_dict("records")
        for row in rows:
            suggestion.evidence.append(
                {
                    "study_id": study_id,
                    "out": str(out),
                    **{
                        name: None if pd.isna(row[name]) else row[name]
                        for name in ("response", "term", "effect", "variation_share", "p_holm")
                    },
                    "scale": str(row.get("scale") or LINEAR),
                }
            )
            suggestion.share = max(
                suggestion.share, suggestion.evidence[-1]["variation_share"] or 0
            )
    for one in by_factor.values():
        one.evidence.sort(key=lambda r: -(r["variation_share"] or 0))
