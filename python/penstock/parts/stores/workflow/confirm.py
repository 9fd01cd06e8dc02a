"""Measured runs of configurations, and workflow-aware hints, for `penstock explore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.calibration.trials import BUSIEST
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.workflow.benefit import chosen_hints
from penstock.parts.stores.workflow.features import uses_set_xattr
from penstock.parts.stores.workflow.options import RunOptions
from penstock.parts.stores.workflow.result import Result
from penstock.parts.stores.workflow.run import (
    Progress,
    plan_of,
    require_servers,
    run_once,
    store_of,
)
from penstock.platform.hosts import Platform
from penstock.plugins import STORE_ENGINES


def measure(
    workflow: Path,
    platform: Path,
    changes: Sequence[str],
    inputs: Path,
    repeat: int,
    measured: Callable[[float, bool], None],
    progress: Progress | None = None,
) -> None:
    """Run a workflow on the store of a platform.

    `measured` is called with the makespan of each run [s], and with True if the host was saturated, as for a
    seeding. A first run creates directories and fills caches, and does not count. Raises as `run_workflow`.
    """
    plan = plan_of(
        workflow, platform, changes, RunOptions(repeat=repeat, predicted=False, inputs=inputs)
    )
    where = plan.platform
    result = Result(plan.workload.name, where.name, deployment(where)[1].engine, [])
    with store_of(where, None, progress, watched=uses_set_xattr(plan.workload)) as store:
        require_servers(store)
        for number in range(repeat + 1):
            before = busy_ticks()
            run_once(plan, store, result, (None, None, progress), [])
            saturated = busy_share(before, busy_ticks()) > BUSIEST
            if number:
                measured(result.makespans_s[-1], saturated)


def workflow_aware(workload: Workload, platform: Platform) -> Workload:
    """The workload with the hints of its graph that have a predicted gain, as `workflow compare`.

    Tasks go to the node with their data meanwhile.
    """
    engine = (platform.plain.get("store") or {}).get("engine")
    support = STORE_ENGINES.load(engine)().support() if engine else {}
    where = platform.with_values({"scheduler.kind": "data_location"})
    return chosen_hints(workload, where, support)[0]
