"""Every kind of hook on the kernels of other Debian releases: accepted and refused kinds."""

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
        report = hooks.booted(work, suite, loads)
    except LookupError as error:
        pytest.skip(str(error))
    assert report["kernel"].startswith(release)
    return report


def test_12_every_call_is_seen_by_fentry_and_by_raw_tracepoints(tmp_path: Path) -> None:
    """This kernel refuses typed tracepoints; this is reported, and their replacement is as exact."""
    report = of_another_debian(tmp_path, "trixie", "6.12.")
    hooks.test_every_kind_of_hook_sees_every_call(report, "fentry")
    assert "tp_btf/sys_exit: EACCES" in report["tp_btf"]["error"]
    hooks.test_counts_are_exact_without_entries(report)
    calls = report["denied"]["hooks"]["calls"]
    assert (calls["state"], calls["hook"]) == ("full", "raw_tp")
    assert "tp_btf/sys_exit: EACCES" in calls["reason"]
    hooks.test_a_planted_loss_is_reported(report)
    for load in ("fentry", "raw_tp", "denied"):
        hooks.test_every_source_balances(report, load)
        hooks.test_nothing_stays_loaded(report, load)


def test_10_has_no_tracing_and_reports_it_in_one_sentence(tmp_path: Path) -> None:
    error = of_another_debian(tmp_path, "bullseye", "5.10.", ("any",))["any"]["error"]
    assert "this kernel lets us see no reads, writes" in error
    assert all(f"{kind}: EINVAL" in error for kind in ("fentry", "tp_btf", "raw_tp", "tracepoint"))
