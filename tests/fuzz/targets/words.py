"""Arguments of the command line."""

from __future__ import annotations

import json

from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.cluster.wire import from_json, to_json
from penstock.errors import BadInput
from penstock.platform import disk_keys
from penstock.spec.alert import parse_rule
from tests.fuzz import mutate as of
from tests.fuzz.drive import Target, plain

_RULES = (b"disk_busy{entity=vd*} > 90% for 5s then abort", b"memory_free<=1 GiB then note")


def _rule(data: bytes) -> bool:
    return bool(parse_rule(data.decode("utf-8", "replace")).metric)


_DISK_ARGUMENTS = (
    b"limits.read=10MiB/s limits.write_iops=500 IOPS",
    b"slow.factor=3\0slow.ramp=10s\0slow.stall.period=1s\0slow.stall.length=100ms",
    b"slow.random.probability=1%\0slow.random.factor=9\0servers=3\0readahead=off\0cache=max",
    b"bad_space.share=50%\0bad_space.mode=flip\0bad_space.seed=1\0bad_space.op=read\0read_only=yes",
    b"faults=[{op: read, error: EIO, probability: 1%, from: 4KiB}]\0limits=max\0slow=max",
    b"credits={iops: {base: 100, burst: 3000}}\0profile=nvme\0power_cut=yes\0full=no",
)

_NODE_ARGUMENTS = (
    b"n-*\0cpus=0.5\0cpuset=0-1\0cpu_ratio=50%\0memory=256MiB\0memory_soft=max",
    b"n-0\0n-1\0state=frozen\0n-2\0disk.data.limits.read=5MB/s\0disk.data.slow.factor=2",
    b"*\0link.net.out=10 Mbit/s\0link.net.delay=5ms\0link.loss=1%\0link.back.in_reorder=1%",
)


def _arguments(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").split("\0")


def _node_arguments(data: bytes) -> None:
    for change in changes_of(_arguments(data)):
        change.check()
        from_json(type(change), json.loads(json.dumps(to_json(change))))


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        plain(
            "disk-words",
            of.of_text(*_DISK_ARGUMENTS),
            lambda d: bool(disk_keys.patch_of(_arguments(d))),
            BadInput,
        ),
        plain("alert-rule", of.of_text(*_RULES), _rule, ValueError),
        plain("node-words", of.of_text(*_NODE_ARGUMENTS), _node_arguments, BadInput),
    ]
