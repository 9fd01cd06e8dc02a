"""Checks of engines and hints: part of `penstock.testing`."""

from __future__ import annotations

from typing import get_args

from penstock.parts.prediction.workloads.task import Hints
from penstock.parts.stores.conformance import conform
from penstock.parts.stores.engines.engine import StoreEngine
from penstock.parts.stores.hints import Hint
from penstock.parts.stores.store import Store
from penstock.plugins import STORE_HINTS
from penstock.spec.privileges import parse_privilege
from penstock.spec.store import PARAMETERS, How


def check_store_engine(engine: type[StoreEngine]) -> None:
    """Check an engine's declarations; `check_store` tests them on nodes."""
    instance = engine()
    assert instance.name, "it has no name"
    assert isinstance(instance.missing(), str), "`missing` gives what is lacking in words"
    for text in (*instance.privileges, *instance.server_privileges):
        parse_privilege(text)
    support = instance.support()
    required = [*PARAMETERS, *(k for k in STORE_HINTS.own if k != "DP")]
    required += [f"DP {kind}" for kind in ("local", "collocation", "scatter")]
    lacking = [key for key in required if key not in support]
    assert not lacking, f"`support` lacks {', '.join(lacking)}"
    for key, one in support.items():
        assert one.how in get_args(How), f"{key}: found {one.how!r}"
        assert one.why, f"{key}: it has no reason"


def check_store(store: Store, *, small_files: int = 100) -> None:
    """Check an engine on a running store: every cell of its matrix, by bytes on the nodes' disks."""
    wrong = [s for s in conform(store, small_files=small_files) if not s.holds]
    assert not wrong, "; ".join(f"{s.cell} ({s.support.how}): {s.evidence}" for s in wrong)


def check_store_hint(hint: Hint, value: str, *, wrong: str) -> None:
    """Check a hint: `value` is a valid value, `wrong` an invalid one."""
    parsed = hint.parse(value)
    Hints(**hint.model(parsed))
    refusal = ""
    try:
        hint.parse(wrong)
    except ValueError as error:
        refusal = str(error)
    assert refusal, f"it takes {wrong!r}, or refuses it without a word of what it expected"
