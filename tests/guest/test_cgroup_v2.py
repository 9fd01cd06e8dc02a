"""The run's control group on a pure v2 host: limits, accounts, time-out, undo."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.guest import machine

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]

RUN = """modprobe ext4; mke2fs /dev/vdc >/dev/null; mkdir /mnt; mount /dev/vdc /mnt
export PYTHONHOME=/job/python PYTHONPATH=/job/python/packages
export LD_LIBRARY_PATH=/job/python/shared
{python} -S /job/job.py
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("guest")
    job = work / "job"
    job.mkdir()
    package = Path(penstock.__file__).parent
    machine.carry_python(job, (package / "host",))
    inside = job / "python" / "packages"
    (inside / "penstock").mkdir()
    shutil.move(inside / "host", inside / "penstock" / "host")
    machine.carry_base(package, inside / "penstock")
    (inside / "penstock" / "__init__.py").write_text('"""The host part alone."""\n')
    shutil.copy(Path(__file__).parent / "job_cgroup_v2.py", job / "job.py")
    (job / "run").write_text(RUN.format(python=Path(os.path.realpath(sys.executable)).name))
    outcome = machine.run(job, ("bash", os.path.realpath(sys.executable)), work / "out")
    line = next((x for x in outcome.log.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, outcome.log + outcome.console
    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return answer


def test_the_host_is_detected_as_v2(report: dict[str, Any]) -> None:
    assert report["layout"] == "v2"
    assert {"memory", "unified"} <= set(report["paths"])


def test_a_command_runs_inside_the_group(report: dict[str, Any]) -> None:
    assert report["status"] == 0
    assert report["inside"].startswith("0::/penstock-guest-")
    assert report["id_is_inode"]
    assert report["cpu_ns"] > 0


def test_the_memory_limit_bounds_the_page_cache(report: dict[str, Any]) -> None:
    assert 32 << 20 < report["peak_bytes"] <= 64 << 20


def test_more_than_the_limit_is_killed_and_counted(report: dict[str, Any]) -> None:
    assert report["greedy_status"] == 137
    assert report["oom_kills"] >= 1


def test_a_time_out_leaves_no_process(report: dict[str, Any]) -> None:
    assert report["timed_out"]
    assert report["left_after_timeout"] == []


def test_removal_restores_the_root_group(report: dict[str, Any]) -> None:
    assert report["after_remove"] == []
    assert report["switches_back"]


def test_undo_after_a_kill(report: dict[str, Any]) -> None:
    assert report["died"] == -9
    assert report["left_by_the_dead"] == 1
    assert report["after_undo"] == []
    assert report["undo_again"] == 0
    assert report["switches_back_by_undo"]


def test_the_groups_of_nodes_have_separate_limits(report: dict[str, Any]) -> None:
    assert report["node_missing"] == []
    assert report["node_cpus"] == [0.5, 0.75]
    assert report["node_cpuset"][0] == [0]
    assert len(report["node_cpuset"][1]) > 1
    assert report["node_memory"] == [[64 << 20, 32 << 20], [None, None]]
    assert report["node_unlimited"][0] is None
    assert len(report["node_unlimited"][1]) > 1
    assert report["node_unlimited"][2] == [None, None]


def test_the_groups_of_nodes_have_a_parent_for_the_tracer(report: dict[str, Any]) -> None:
    above = report["above"]
    assert above["in_root"]
    assert above["of_node"]
    assert above["groups"] == [True]
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(above["controllers"])
    # the weight of two nodes is twice that of one
    assert above["weight"] == "200"
    assert report["nodes_of_the_dead"] == 2


def test_half_a_processor_on_v2(report: dict[str, Any]) -> None:
    assert report["throttled_ns"] > 0
    assert 0.40 <= report["loop_share"] <= 0.53
    assert report["cpu_outside_loop_s"] > 0  # the group counts the start of the interpreter as well


def test_the_kernel_reclaims_above_the_soft_limit(report: dict[str, Any]) -> None:
    assert report["soft_status"] == 0
    assert report["soft_usage_bytes"] < 40 << 20
    assert report["pressed_by_the_kernel"]


def test_one_node_is_frozen_and_thawed(report: dict[str, Any]) -> None:
    assert report["frozen"] == [True, False]
    assert report["thawed"]


def test_groups_of_nodes_are_removed_and_controllers_restored(report: dict[str, Any]) -> None:
    assert report["nodes_removed"] == []
    assert report["nodes_switch_back"]
