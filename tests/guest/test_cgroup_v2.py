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
def says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
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


def test_the_host_is_known_as_v2(says: dict[str, Any]) -> None:
    assert says["layout"] == "v2"
    assert {"memory", "unified"} <= set(says["paths"])


def test_a_command_runs_inside_the_group(says: dict[str, Any]) -> None:
    assert says["status"] == 0
    assert says["inside"].startswith("0::/penstock-guest-")
    assert says["id_is_inode"]
    assert says["cpu_ns"] > 0


def test_the_memory_limit_bounds_the_page_cache(says: dict[str, Any]) -> None:
    assert 32 << 20 < says["peak_bytes"] <= 64 << 20


def test_more_than_the_limit_is_killed_and_counted(says: dict[str, Any]) -> None:
    assert says["greedy_status"] == 137
    assert says["oom_kills"] >= 1


def test_a_time_out_leaves_nobody(says: dict[str, Any]) -> None:
    assert says["timed_out"]
    assert says["left_after_timeout"] == []


def test_removal_puts_the_root_back(says: dict[str, Any]) -> None:
    assert says["after_remove"] == []
    assert says["switches_back"]


def test_undo_after_a_kill(says: dict[str, Any]) -> None:
    assert says["died"] == -9
    assert says["left_by_the_dead"] == 1
    assert says["after_undo"] == []
    assert says["undo_again"] == 0
    assert says["switches_back_by_undo"]


def test_the_groups_of_nodes_are_limited_each_for_itself(says: dict[str, Any]) -> None:
    assert says["node_missing"] == []
    assert says["node_cpus"] == [0.5, 0.75]
    assert says["node_cpuset"][0] == [0]
    assert len(says["node_cpuset"][1]) > 1
    assert says["node_memory"] == [[64 << 20, 32 << 20], [None, None]]
    assert says["node_unlimited"][0] is None
    assert len(says["node_unlimited"][1]) > 1
    assert says["node_unlimited"][2] == [None, None]


def test_the_groups_of_nodes_have_a_parent_for_the_tracer(says: dict[str, Any]) -> None:
    above = says["above"]
    assert above["in_root"]
    assert above["of_node"]
    assert above["groups"] == [True]
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(above["controllers"])
    # two nodes weigh as two
    assert above["weight"] == "200"
    assert says["nodes_of_the_dead"] == 2


def test_half_a_processor_on_v2(says: dict[str, Any]) -> None:
    assert says["throttled_ns"] > 0
    assert 0.40 <= says["loop_share"] <= 0.53
    assert says["cpu_outside_loop_s"] > 0  # the group counts the start of the interpreter as well


def test_the_kernel_presses_above_the_soft_limit(says: dict[str, Any]) -> None:
    assert says["soft_status"] == 0
    assert says["soft_usage_bytes"] < 40 << 20
    assert says["pressed_by_the_kernel"]


def test_one_node_is_frozen_and_thawed(says: dict[str, Any]) -> None:
    assert says["frozen"] == [True, False]
    assert says["thawed"]


def test_groups_of_nodes_are_removed_and_switches_put_back(says: dict[str, Any]) -> None:
    assert says["nodes_removed"] == []
    assert says["nodes_switch_back"]
