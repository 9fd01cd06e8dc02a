"""Every kind of hook on the kernels of other Debians: what they allow, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.guest import machine
from tests.guest import test_hooks as hooks

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]


def of_another_debian(
    work: Path, suite: str, release: str, loads: tuple[str, ...] = hooks.LOADS
) -> dict[str, Any]:
    try:
        says = hooks.booted(work, suite, loads)
    except LookupError as error:
        pytest.skip(str(error))
    assert says["kernel"].startswith(release)
    return says


def test_12_every_call_is_seen_by_fentry_and_by_raw_tracepoints(tmp_path: Path) -> None:
    """Typed tracepoints are refused there; that is told, and what takes their place is as exact."""
    says = of_another_debian(tmp_path, "trixie", "6.12.")
    hooks.test_every_kind_of_hook_sees_every_call(says, "fentry")
    assert "tp_btf/sys_exit: EACCES" in says["tp_btf"]["error"]
    hooks.test_counts_are_exact_without_entries(says)
    calls = says["denied"]["hooks"]["calls"]
    assert (calls["state"], calls["hook"]) == ("full", "raw_tp")
    assert "tp_btf/sys_exit: EACCES" in calls["reason"]
    hooks.test_a_planted_loss_shows(says)
    for load in ("fentry", "raw_tp", "denied"):
        hooks.test_every_source_balances(says, load)
        hooks.test_nothing_stays_loaded(says, load)


def test_10_there_is_no_tracing_and_one_sentence_says_so(tmp_path: Path) -> None:
    error = of_another_debian(tmp_path, "bullseye", "5.10.", ("any",))["any"]["error"]
    assert "this kernel lets us see no reads, writes" in error
    assert all(f"{kind}: EINVAL" in error for kind in ("fentry", "tp_btf", "raw_tp", "tracepoint"))
