"""Ceph's daemons inside nodes: configuration, start, commands, stop.

The host is not modified: a node's files are on its disk, its sockets in its own /run.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.parts.stores.engines.engine import Site, address
from penstock.spec.store_engines import CEPH_SIZES

#: maximum size of an OSD's sparse block file
_BLOCK = 64 * 2**30
#: sockets and pids of a node's daemons
_RUN = "/run/penstock-ceph"

#: settings of all daemons and clients: the network is private to the cluster, memory is scarce, and the OSDs'
#: writes must reach the disk without delay
_SETTINGS = {
    "auth cluster required": "none",
    "auth service required": "none",
    "auth client required": "none",
    "auth allow insecure global id reclaim": "false",
    "log file": "/var/log/ceph/$name.log",
    "mon cluster log file": "/var/log/ceph/cluster.log",
    "log max recent": 500,
    "ms async op threads": 1,
    "mon allow pool size one": "true",
    "mon max pg per osd": 4000,
    "mon data avail crit": 1,
    "mon data avail warn": 2,
    "mon osd min down reporters": 1,
    "paxos propose interval": 0.1,
    "paxos min wait": 0.01,
    "mon client hunt interval": 1,
    "mgr initial modules": '""',
    "mgr stats period": 1,
    "mgr tick period": 1,
    "mds beacon interval": 1,
    "mds cache memory limit": 67108864,
    "osd class update on start": "false",
    "osd crush update on start": "false",
    "osd pool default min size": 1,
    "osd pool default pg autoscale mode": "off",
    "osd max object size": CEPH_SIZES.most_bytes,
    "osd objectstore": "bluestore",
    "osd op num shards": 2,
    "osd op num threads per shard": 1,
    "osd min pg log entries": 100,
    "osd max pg log entries": 200,
    "bluestore block create": "true",
    "bluestore cache autotune": "false",
    "bluestore cache size": 33554432,
    "bluestore debug enforce settings": "ssd",
    "bluestore rocksdb options": "compression=kNoCompression,max_write_buffer_number=2,"
    "min_write_buffer_number_to_merge=1,recycle_log_file_num=2,write_buffer_size=16777216,"
    "max_background_jobs=1",
}

#: $0: data directory, $1: cluster id; the configuration has the monitor's address
_MONITOR = """
umask 077 && cd "$0" &&
ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *' &&
ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' \
  --cap mds 'allow *' --cap mgr 'allow *' &&
monmaptool --create --fsid "$1" --addv a "$(sed -n 's/^mon host = //p' "$CEPH_CONF")" monmap &&
ceph-mon --mkfs -i a --monmap monmap --keyring keyring && ceph-mon -i a
"""
#: $0: data directory, $1: number, $2: id, $3: maximum size of the block file
_OSD = """
mkdir -p "$0/osd" && free=$(df --output=avail -B1 "$0" | tail -n 1) || exit 1
size=$((free / 10 * 9)) && [ "$size" -le "$3" ] || size=$3
ceph-osd -i "$1" --mkfs --osd-uuid "$2" --bluestore_block_size="$size" && ceph-osd -i "$1"
"""
#: stops daemons one after the other, by their pid files; $0 and the other arguments are names
_STOP = """
for name in "$0" "$@"; do
  pid=$(cat /run/penstock-ceph/"$name".pid 2>/dev/null) || continue
  kill "$pid" 2>/dev/null || continue
  for turn in $(seq 200); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  ! kill -0 "$pid" 2>/dev/null || { echo "$name does not end"; exit 1; }
done
"""
#: program in a node that queries the monitor or manager daemon: JSON commands on stdin, and the concurrency
_ASK = """
import concurrent.futures, json, os, sys
import rados
# without an admin socket, which it would leave behind
conf = {"client_mount_timeout": "30", "admin_socket": ""}
cluster = rados.Rados(conffile=os.environ["CEPH_CONF"], conf=conf)
cluster.connect()

def told(one):
    given = open(one["file"], "rb").read() if one["file"] else b""
    ask = cluster.mgr_command if one["mgr"] else cluster.mon_command
    status, out, why = ask(json.dumps({**one["command"], "format": "json"}), given, timeout=60)
    if status:
        sys.exit(f"{one['command']['prefix']}: {why or os.strerror(-status)}")
    return json.loads(out) if out.strip() else None

with concurrent.futures.ThreadPoolExecutor(int(sys.argv[1])) as pool:
    print(json.dumps(list(pool.map(told, json.load(sys.stdin)))), flush=True)
os._exit(0)  # librados may abort while it is torn down
"""


def home(site: Site, node: RunningNode) -> str:
    """A node's directory for Ceph's files."""
    return f"{site.data(node)}/ceph"


def environment(site: Site, node: RunningNode) -> dict[str, str]:
    """Environment variables with the location of Ceph's configuration."""
    return {"CEPH_CONF": f"{home(site, node)}/ceph.conf"}


def shell(site: Site, node: RunningNode, script: str, what: str, *arguments: str) -> str:
    """Run a script in a node with the arguments $0, $1, …; returns its output."""
    argv = ["/bin/sh", "-c", script, *arguments]
    return site.run(node, argv, what=what, env=environment(site, node))


def python(
    site: Site, node: RunningNode, script: str, what: str, *arguments: str, stdin: bytes = b""
) -> str:
    """Run a script with Debian's Python, which has python3-rados."""
    argv = ["/usr/bin/python3", "-I", "-c", script, *arguments]
    return site.run(node, argv, what=what, stdin=stdin, env=environment(site, node))


def ask(
    site: Site,
    *commands: dict[str, Any],
    mgr: Sequence[int] = (),
    file: str = "",
    at_once: int = 1,
) -> list[Any]:
    """Send commands to the monitor, in one connection; the reply to each, None for an empty one.

    Indices in `mgr` are commands for the manager daemon. `file` is input of each; without `at_once` they are
    sent one by one.
    """
    requests = [{"command": c, "mgr": i in mgr, "file": file} for i, c in enumerate(commands)]
    stdin = json.dumps(requests).encode()
    output = python(site, site.managers[0], _ASK, "the monitor", str(at_once), stdin=stdin)
    return list(json.loads(output.splitlines()[-1]))  # warnings of librados may precede it


def configure(site: Site, node: RunningNode) -> None:
    """Write a node's ceph.conf and create the directories of its daemons."""
    at, monitor = home(site, node), site.state["monitor"]
    own = {
        "fsid": site.state["fsid"],
        "mon host": f"[v2:{monitor}:3300/0,v1:{monitor}:6789/0]",
        "public addr": address(node),
        "run dir": _RUN,
        "pid file": f"{_RUN}/$name.pid",
        "admin socket": f"{_RUN}/$name.$pid.asok",
        "keyring": f"{at}/keyring",
        "mon data": f"{at}/mon",
        "mgr data": f"{at}/mgr",
        "mgr module path": f"{at}/modules",
        "mds data": f"{at}/mds",
        "osd data": f"{at}/osd",
    }
    text = "[global]\n" + "".join(f"{k} = {v}\n" for k, v in (own | _SETTINGS).items())
    site.write(node, f"{at}/ceph.conf", text)
    shell(
        site,
        node,
        'mkdir -p -m 700 "$0" "$@"',
        "its directories",
        _RUN,
        *(f"{at}/{name}" for name in ("mgr", "modules", "mds")),
    )


def start_monitor(site: Site) -> None:
    """Start the monitor and the manager daemon on the first manager node, and wait until both answer."""
    manager = site.managers[0]
    shell(site, manager, _MONITOR, "the monitor", home(site, manager), site.state["fsid"])
    shell(site, manager, "ceph-mgr -i a", "the manager daemon")
    site.wait(
        lambda: bool(ask(site, {"prefix": "mgr stat"})[0]["available"]),
        "the manager daemon has not become active",
    )


def start_osds(site: Site) -> None:
    """Start an OSD on each storage node in parallel, and wait until the monitor lists all of them."""
    ids = [str(uuid.uuid4()) for _ in site.storage]
    ask(site, *({"prefix": "osd new", "uuid": one} for one in ids))

    def start(node: RunningNode, number: int, osd_id: str) -> None:
        arguments = (home(site, node), str(number), osd_id, str(_BLOCK))
        shell(site, node, _OSD, "its OSD", *arguments)

    with ThreadPoolExecutor(max_workers=4) as at_once:
        list(at_once.map(start, site.storage, range(len(ids)), ids))
    site.wait(
        lambda: sum(o["up"] for o in ask(site, {"prefix": "osd dump"})[0]["osds"]) == len(ids),
        f"not all of {len(ids)} OSDs have come to the monitor",
    )


def stop(site: Site, node: RunningNode, *names: str) -> None:
    """Stop daemons of a node one after the other. PenstockError if one does not end."""
    shell(site, node, _STOP, "stopping", *names)
