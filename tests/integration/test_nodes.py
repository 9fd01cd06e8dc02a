"""Virtual nodes: start, commands, changes at run time, failures, stop; the host is restored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.emulate.cluster.cluster import Cluster
from penstock.errors import BadInput, PenstockError
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, LinkSpec, NodeSpec, When
from tests.integration.known_host import BRIEFLY
from tests.integration.net_ground import neighbour_limits
from tests.integration.node_ground import NODES, PLATFORM, RUNTIMES, Ground, one_ground
from tests.support import commands
from tests.support.waiting import until

__all__ = ["one_ground"]  # a fixture
pytestmark = NODES


def nodes_of(ground: Ground, *specs: NodeSpec, runtime: str = "auto") -> Cluster:
    """Start a cluster that ends with its test."""
    spec = ClusterSpec("gt", specs, runtime=runtime)
    return Cluster.up(spec, ground.journal(), outlive=False)


def output_of(cluster: Cluster, node: str, command: str) -> str:
    """Run a shell command inside a node and return its standard output."""
    out = cluster.home.parents[2] / "said"
    result = cluster.exec(node, ["/bin/sh", "-c", command], stdout=out)
    assert result.exit_status == 0, command
    return out.read_text()


def test_platform_is_started_used_and_stopped(ground: Ground) -> None:
    before = ground.host_objects()
    platform = ground.where / "p.yaml"
    platform.write_text(PLATFORM.format(count=2))
    up = ground.penstock("nodes", "up", str(platform), "--set", "hosts.n.count=3")
    assert up.returncode == 0, up.stderr
    assert "gt: 3 nodes up" in up.stdout
    hosts = ground.penstock("nodes", "exec", "n-2", "--", "sh", "-c", "hostname; cat /etc/hosts")
    assert hosts.stdout.splitlines()[0] == "n-2"
    assert "n-0" in hosts.stdout
    assert "n-1" in hosts.stdout
    write = "echo $(hostname) > /disks/data/who && sync /disks/data/who && exit 5"
    failed = ground.penstock("nodes", "exec", "n-*", "--", "sh", "-c", write + "; exit 9")
    assert failed.returncode == 5
    printed = ground.penstock("nodes", "exec", "n-?", "--", "cat", "/disks/data/who")
    assert sorted(printed.stdout.split()) == sorted("n-0 | n-0 n-1 | n-1 n-2 | n-2".split())
    assert ground.penstock("nodes", "exec", "n-1", "--", "sh", "-c", "kill -9 $$").returncode == 137
    status = json.loads(ground.penstock("nodes", "status", "-c", "gt", "--json").stdout)[
        "clusters"
    ][0]
    assert [n["state"] for n in status["nodes"]] == ["running"] * 3
    assert status["nodes"][1]["disks"]["data"]["stats"]["writes"] >= 1
    change = (
        "nodes",
        "set",
        "n-*",
        "cpus=0.5",
        "n-1",
        "memory=128MiB",
        "link.out=10Mbit/s",
        "--json",
    )
    applied = json.loads(ground.penstock(*change).stdout)["applied"]
    actual = {(a["node"], a["resource"]): a["found"] for a in applied}
    assert [actual[f"n-{i}", "cpu"]["cpus"] for i in range(3)] == [0.5] * 3
    assert actual["n-1", "memory"]["hard"] == 128 << 20
    assert ("n-0", "memory") not in actual
    second = ground.penstock("nodes", "up", str(platform))
    assert second.returncode == 2
    assert "up already" in second.stderr
    assert ground.penstock("nodes", "down").returncode == 0
    ground.assert_host_objects(before)
    assert ground.journal().open_entries() == []


def test_a_disk_faster_than_the_host_is_refused(ground: Ground) -> None:
    before = ground.host_objects()
    platform = ground.where / "p.yaml"
    platform.write_text(PLATFORM.format(count=2))
    changes = ("profile=nvme", "time_scale=1")
    options = [argument for c in changes for argument in ("--set", f"hosts.n.disks.data.{c}")]
    argv = [*BRIEFLY, "nodes", "up", str(platform), *options]
    up = commands.run(argv, env=ground.environment, capture_output=True, text=True, timeout=120)
    assert up.returncode == 2, up.stdout
    assert "nearest sustainable time_scale" in up.stderr
    ground.assert_host_objects(before)


def test_copy_files_to_nodes_and_from_a_node(ground: Ground) -> None:
    platform = ground.where / "p.yaml"
    platform.write_text(PLATFORM.format(count=2))
    up = ground.penstock("nodes", "up", str(platform))
    assert up.returncode == 0, up.stderr
    tree = ground.where / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "run.sh").write_text("echo from $(hostname)\n")
    (tree / "deep" / "run.sh").chmod(0o755)
    assert ground.penstock("nodes", "cp", str(tree), "n-*:/opt").returncode == 0
    printed = ground.penstock("nodes", "exec", "n-*", "--", "/bin/sh", "/opt/tree/deep/run.sh")
    assert sorted(printed.stdout.split()) == sorted("n-0 | from n-0 n-1 | from n-1".split())
    assert not os.path.exists("/opt/tree")
    copied = ground.penstock(
        "nodes", "cp", str(tree / "deep" / "run.sh"), "n-1:/disks/data/mine", "--json"
    )
    assert json.loads(copied.stdout) == {"nodes": ["n-1"]}
    file_copy, tree_copy = ground.where / "back", ground.where / "again"
    assert ground.penstock("nodes", "cp", "n-1:/disks/data/mine", str(file_copy)).returncode == 0
    assert file_copy.read_text() == "echo from $(hostname)\n"
    assert file_copy.stat().st_mode & 0o777 == 0o755
    assert ground.penstock("nodes", "cp", "n-0:/opt/tree", str(tree_copy)).returncode == 0
    assert (tree_copy / "deep" / "run.sh").read_text() == file_copy.read_text()
    # a symbolic link that points outside is not copied
    escape = "cd /tmp && ln -s /etc out && tar -cf /dev/null out"
    ground.penstock("nodes", "exec", "n-0", "--", "sh", "-c", escape)
    refused = ground.penstock("nodes", "cp", "n-0:/tmp/out", str(ground.where / "link"))
    assert refused.returncode == 1
    assert "cannot be copied" in refused.stderr
    for paths, status, message in (
        (("a", "b"), 2, "one of them to be NODE:PATH"),
        (("n-0:/a", "n-1:/b"), 2, "one of them to be NODE:PATH"),
        (("n-*:/etc/hosts", str(ground.where)), 2, "one to copy from"),
        (("n-0:etc/hosts", str(ground.where)), 2, "one from / on"),
        ((str(ground.where / "missing"), "n-0:/opt"), 2, "found nothing"),
        (("n-0:/missing", str(ground.where)), 1, "n-0:/missing cannot be read"),
        ((str(platform), "n-0:/no/such/place"), 1, "cannot be written"),
    ):
        result = ground.penstock("nodes", "cp", *paths)
        assert (result.returncode, message in result.stderr) == (status, True), (
            paths,
            result.stderr,
        )
    change = ("nodes", "set", "n-0", "bandwidth=5Mbit/s", "disk.data.limits.read=10MB/s")
    assert ground.penstock(*change).returncode == 0
    table = ground.penstock("nodes", "status").stdout
    assert max(map(len, table.splitlines())) <= 100
    rows = [line.split() for line in table.splitlines()]
    assert [row[:6] for row in rows if row[:2] == ["n-0", "data"]] == [
        ["n-0", "data", "hdd-7200", "at", "1/20", "speed"]
    ]
    assert "limits.read_bps=10 MB/s" in table
    cluster = json.loads(ground.penstock("nodes", "status", "--json").stdout)["clusters"][0]
    (requested,) = (link["asked"] for link in cluster["nodes"][0]["links"].values())
    assert (requested["out_bps"], requested["in_bps"]) == (625e3, 625e3)  # bytes
    assert "out=5 Mbit/s, in=5 Mbit/s" in table
    assert ground.penstock("nodes", "down").returncode == 0


@RUNTIMES
def test_a_node_has_its_own_root_processes_and_network(ground: Ground, runtime: str) -> None:
    before = ground.host_objects()
    (ground.where / "seen").write_text("by the host")
    specs = (NodeSpec("one"), NodeSpec("two"))
    with nodes_of(ground, *specs, runtime=runtime) as cluster:
        output_of(cluster, "one", f"echo mine > {ground.where}/seen; touch /root/kept /tmp/private")
        assert (ground.where / "seen").read_text() == "by the host"
        assert output_of(cluster, "one", f"cat {ground.where}/seen") == "mine\n"
        assert output_of(cluster, "two", f"cat {ground.where}/seen") == "by the host"
        assert output_of(cluster, "two", "ls /tmp/private 2>&1 | grep -c 'No such'").strip() == "1"
        assert output_of(cluster, "two", f"{sys.executable} -c 'print(6 * 7)'").strip() == "42"
        assert not os.path.exists("/root/kept")
        assert output_of(cluster, "one", "ls /proc | grep -c '^[0-9]'").strip() in "3 4 5 6".split()
        interfaces = output_of(
            cluster, "two", "cat /proc/net/dev | cut -d: -f1 | tail -n +3"
        ).split()
        assert sorted(interfaces) == ["e0", "lo"]
        server = "python3 -m http.server 8000 --directory /etc >/dev/null 2>&1 & echo started"
        output_of(cluster, "one", server)
        fetch = (
            "import urllib.request, time\n"
            "for _ in range(1200):\n"
            "    try: print(urllib.request.urlopen('http://one:8000/hostname').read()); break\n"
            "    except OSError: time.sleep(0.05)\n"
        )
        assert output_of(cluster, "two", f'python3 -c "{fetch}"') == "b'one\\n'\n"
        output_of(cluster, "one", "(sleep 0.05 &) ; sleep 0.2")
        states = "cat /proc/[0-9]*/stat 2>/dev/null; true"  # processes end meanwhile
        until(lambda: ") Z " not in output_of(cluster, "one", states))
    ground.assert_host_objects(before)


def test_an_image_is_the_root(ground: Ground) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox-static")
    image = ground.where / "an image, with: odd name"
    (image / "bin").mkdir(parents=True)
    shutil.copy(busybox, image / "bin" / "busybox")
    (image / "bin" / "sh").symlink_to("busybox")
    with nodes_of(ground, NodeSpec("one", image=image)) as cluster:
        assert output_of(cluster, "one", "busybox ls /; busybox cat /etc/hostname").split() == [
            *"bin dev etc proc run sys tmp one".split()
        ]
    assert sorted(os.listdir(image)) == ["bin"]


def test_a_node_that_dies_is_reported_and_can_be_restarted(ground: Ground) -> None:
    with nodes_of(ground, NodeSpec("one"), NodeSpec("two")) as cluster:
        address = cluster.nodes["one"].address
        output_of(cluster, "one", "echo kept > /root/kept")
        stale = cluster.nodes["one"]
        os.kill(stale.pid, 9)
        until(lambda: cluster.status()[0]["state"] == "failed")
        cluster.refresh()
        assert cluster.nodes["one"].state == "failed"
        assert "killed" in cluster.nodes["one"].failure
        with pytest.raises(PenstockError, match="has died"):
            stale.enter(["true"])
        with pytest.raises(PenstockError, match="failed"):
            cluster.nodes["one"].enter(["true"])
        (answer,) = cluster.set(["one"], "cpu", None, {"cpus": 1})
        assert "has failed" in answer["error"]
        assert answer["found"] == {}
        (answer,) = cluster.set(["one"], "node", None, {"state": "up"})
        assert answer["error"] == ""
        cluster.refresh()
        assert cluster.nodes["one"].address == address
        assert output_of(cluster, "one", "cat /root/kept") == "kept\n"


def test_a_node_restarted_by_a_schedule_keeps_its_links_and_is_monitored(ground: Ground) -> None:
    states = [(0.0, "down"), (0.3, "up")]
    with nodes_of(ground, NodeSpec("one", links=(LinkSpec(out_bps=5e6),))) as cluster:
        (answer,) = cluster.set(["one"], "network", None, {"out_bps": 2e6})
        assert answer["error"] == ""
        cluster.schedule([Event(When(at_s), "node", {"state": state}) for at_s, state in states])
        until(lambda: len(cluster.events()) == 1)
        (answer,) = cluster.set(["one"], "network", None, {"in_bps": 3e6})
        assert (answer["found"], answer["error"]) == ({"in_bps": 3e6}, "")
        until(lambda: len(cluster.events()) == 2)
        (link,) = cluster.status()[0]["links"].values()
        assert (link["asked"]["out_bps"], link["asked"]["in_bps"]) == (2e6, 3e6)
        cluster.refresh()
        os.kill(cluster.nodes["one"].pid, 9)
        until(lambda: cluster.status()[0]["state"] == "failed")


@RUNTIMES
def test_a_node_has_its_disk_after_a_power_cut(ground: Ground, runtime: str) -> None:
    volatile = {"patch": {"volatile": True}}
    disks = (DiskSpec("d", mount="/d", **volatile), DiskSpec("in", mount="/d/in"))
    with nodes_of(ground, NodeSpec("one", disks=disks, links=()), runtime=runtime) as cluster:
        output_of(
            cluster, "one", "echo 1 > /d/kept; sync /d/kept; echo 2 > /d/kept; echo 3 > /d/in/f"
        )
        before = cluster.nodes["one"].disks["d"].device
        cut = Event(When(0.1), "disk", {"power_cut": True}, name="d")
        cluster.schedule([cut])
        until(lambda: any("power_cut" in e["asked"] for e in cluster.events()))

        def mounted_anew() -> bool:
            output = output_of(cluster, "one", "stat -c %d /d; cat /d/in/f 2>&1 || true")
            number, *rest = output.split() or [""]
            return rest == ["3"] and number != str(os.makedev(*before))

        until(mounted_anew)
        (event,) = (e for e in cluster.events() if "power_cut" in e["asked"])
        assert not event["error"]
        assert output_of(cluster, "one", "cat /d/kept /d/in/f; echo 4 > /d/more") == "1\n3\n"
        cluster.refresh()
        device = cluster.nodes["one"].disks["d"].device
        assert device != before
        number = os.makedev(*device)
        assert output_of(cluster, "one", "stat -c %d /d") == f"{number}\n"
        (answer,) = cluster.set(["one"], "disk", "d", {"power_cut": True})
        assert (answer["error"], list(answer["found"])) == ("", ["power_cut"])
        assert output_of(cluster, "one", "ls /d") == "in\nkept\n"
        (answer,) = cluster.set(["one"], "disk", "in", {"power_cut": True})
        assert "volatile" in answer["error"]
        assert output_of(cluster, "one", "cat /d/in/f") == "3\n"


def test_an_unusable_image_leaves_nothing_on_the_host(ground: Ground) -> None:
    """/proc of the image is a file."""
    image = ground.where / "image"
    image.mkdir()
    (image / "proc").write_text("a file, where a directory has to be")
    before = ground.host_objects()
    with pytest.raises(PenstockError, match=r"node one: .*proc"):
        nodes_of(ground, NodeSpec("one", image=image))
    ground.assert_host_objects(before)
    assert ground.journal().open_entries() == []


def test_an_interrupted_up_leaves_nothing_on_the_host(ground: Ground) -> None:
    before = ground.host_objects()
    platform = ground.where / "p.yaml"
    platform.write_text(PLATFORM.format(count=60))
    argv = [sys.executable, "-m", "penstock", "nodes", "up", str(platform)]
    with neighbour_limits():
        for _ in range(5):
            child = commands.popen(
                argv,
                env=ground.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            while not list(ground.where.glob("state-passable/clusters/*/mounts/n-3")):
                assert child.poll() is None, child.communicate()[1]
                time.sleep(0.002)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
            if child.returncode != 0:
                break
            # this process was paused until the start was complete
            assert ground.penstock("nodes", "down").returncode == 0
        assert child.returncode != 0
        assert "Traceback" not in errors
        ground.assert_host_objects(before)
        assert ground.journal().open_entries() == []


def test_ssh_accepts_only_the_key_of_the_cluster(ground: Ground) -> None:
    if shutil.which("ssh") is None or not os.path.exists("/usr/sbin/sshd"):
        pytest.skip("needs openssh")
    with nodes_of(ground, NodeSpec("one", ssh=True), NodeSpec("two", ssh=True)) as cluster:
        ssh_argv = cluster.described["ssh"]["words"]
        address = cluster.nodes["two"].address
        assert address is not None
        argv = [*ssh_argv, "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", address, "hostname"]
        result = commands.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert result.stdout == "two\n", result.stderr
        wrong_key = [w if not w.endswith("/id") else f"{w}x" for w in argv]
        result = commands.run(wrong_key, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 255


def test_freezing_stops_one_node_only(ground: Ground) -> None:
    count = "while :; do echo . >> /tmp/i; sleep 0.01; done >/dev/null 2>&1 &"

    def grows(path: Path, within_s: float) -> bool:
        first = path.stat().st_size
        deadline = time.monotonic() + within_s
        while path.stat().st_size == first and time.monotonic() < deadline:
            time.sleep(0.02)
        return path.stat().st_size != first

    with nodes_of(ground, NodeSpec("one"), NodeSpec("two")) as cluster:
        for node in ("one", "two"):
            output_of(cluster, node, count)
        one, two = (cluster.home / "nodes" / n / "tmp" / "i" for n in ("one", "two"))
        until(lambda: one.exists() and two.exists())
        assert grows(one, 60.0)
        cluster.freeze("one")
        with pytest.raises(PenstockError, match="frozen"):
            cluster.exec("one", ["true"])
        assert not grows(one, 0.3)
        assert grows(two, 60.0)
        cluster.unfreeze("one")
        assert grows(one, 60.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ClusterSpec("gt", (NodeSpec("a"), NodeSpec("a"))), "node a occurs 2 times"),
        (ClusterSpec("gt", (NodeSpec("a b"),)), "node name: found 'a b'"),
        (ClusterSpec("g/t", (NodeSpec("a"),)), "cluster name"),
        (ClusterSpec("gt", (NodeSpec("a", cpu_ratio=1.5),)), r"share in \]0, 1\]"),
        (ClusterSpec("gt", (NodeSpec("a", cpus=float("nan")),)), "cpus found nan"),
        (ClusterSpec("gt", (NodeSpec("a", memory_bytes=100),)), "at least"),
        (ClusterSpec("gt", (NodeSpec("a", cpuset=(999,)),)), "cpuset found"),
    ],
)
def test_bad_input_changes_nothing(ground: Ground, spec: ClusterSpec, message: str) -> None:
    before = ground.host_objects()
    with pytest.raises(BadInput, match=message):
        Cluster.up(spec, ground.journal(), outlive=False)
    ground.assert_host_objects(before)
    assert ground.journal().open_entries() == []
