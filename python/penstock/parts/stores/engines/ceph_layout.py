"""Layouts of CephFS files: read, change, and map to the nodes with the bytes.

A layout is `stripe_unit`, `stripe_count`, `object_size` (bytes) and `pool` (docs.ceph.com, File layouts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.parts.stores.engines.ceph_daemons import python
from penstock.parts.stores.engines.ceph_pools import DATA
from penstock.parts.stores.engines.engine import Site
from penstock.spec.store import Extent
from penstock.spec.store_engines import CAPABILITIES, CEPH_SIZES

#: default of a file's layout
CHUNK = CAPABILITIES["cephfs"].chunk_bytes
#: maximum size of an object
MOST = CEPH_SIZES.most_bytes
_NUMBERS = ("stripe_unit", "stripe_count", "object_size")

#: gets (`path`) or sets (`path layout`) a layout; directories inherit it. A file that ever had data is
#: `held`: its layout cannot change, even if the file is empty again
_LAYOUT = """
import errno, os, sys, time
path, *given = sys.argv[1:]
kind = "dir" if os.path.isdir(path) else "file"
if given:
    for left in range(50, -1, -1):
        try:
            os.setxattr(path, f"ceph.{kind}.layout", given[0].encode())
            break
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                print("held")
                break
            # a pool that the metadata server has not heard of yet
            if error.errno != errno.EINVAL or not left:
                sys.exit(f"{path}: {error.strerror}")
            time.sleep(0.1)
else:
    while True:
        try:
            print(os.getxattr(path, f"ceph.{kind}.layout").decode())
            break
        except OSError as error:
            if error.errno != errno.ENODATA or path == "/":
                sys.exit(f"{path}: {error.strerror}")
            path = os.path.dirname(path)
"""
#: extents of a file: an object's placement group is Jenkins' hash of its name (the monitor's answer is
#: checked against it); one query per group to the monitor
_LOCATE = """
import json, os, sys
import rados
path, pool, groups, unit, count, size = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
about = os.stat(path)

def mixed(a, b, c):
    for down, up, last in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & 0xFFFFFFFF) ^ c >> down
        b = ((b - c - a) ^ a << up) & 0xFFFFFFFF
        c = (c - a - b & 0xFFFFFFFF) ^ b >> last
    return a, b, c

def hashed(name):
    a = b = 0x9E3779B9
    c, rest = 0, name
    while len(rest) >= 12:
        x, y, z = (int.from_bytes(rest[i : i + 4], "little") for i in (0, 4, 8))
        a, b, c = mixed(a + x, b + y, c + z)
        rest = rest[12:]
    x, y = (int.from_bytes(rest[i : i + 4], "little") for i in (0, 4))
    z = int.from_bytes(rest[8:], "little") << 8
    return mixed(a + x, b + y, c + len(name) + z)[2]

# without an admin socket, which it would leave behind
conf = {"client_mount_timeout": "30", "admin_socket": ""}
cluster = rados.Rados(conffile=os.environ["CEPH_CONF"], conf=conf)
cluster.connect()
groups_on, parts = {}, []

def of(number):
    name = f"{about.st_ino:x}.{number:08x}"
    group = hashed(name.encode()) % groups
    if group not in groups_on:
        ask = {"prefix": "osd map", "pool": pool, "object": name, "format": "json"}
        status, said, why = cluster.mon_command(json.dumps(ask), b"", timeout=30)
        if status:
            sys.exit(f"osd map: {why}")
        said = json.loads(said)
        if int(said["pgid"].partition(".")[2], 16) != group:
            sys.exit(f"{name}: expected in placement group {group:x}; found {said['pgid']}")
        groups_on[group] = said["acting"]
    return group

last = None
for block in range(-(-about.st_size // unit)):
    stripe, place = divmod(block, count)
    number = stripe // (size // unit) * count + place
    length = min(unit, about.st_size - block * unit)
    if number == last:
        parts[-1][0] += length
    else:
        parts.append([length, of(number)])
    last = number
print(json.dumps({"on": groups_on, "parts": parts}), flush=True)
os._exit(0)  # librados may abort while it is torn down
"""


def root_layout(site: Site) -> dict[str, Any]:
    """Layout of files without hints."""
    chunk = site.spec.parameters.get("chunk", CHUNK)
    width = site.spec.parameters.get("stripe", len(site.storage))
    layout = {"stripe_unit": chunk, "stripe_count": 1, "object_size": chunk, "pool": DATA}
    if width < len(site.storage):  # few objects, large enough for the complete file
        layout |= {"stripe_count": width, "object_size": MOST // chunk * chunk}
    return layout


def _narrow(layout: Mapping[str, Any]) -> bool:
    """True if a layout's objects have the maximum size, so that a file has few of them."""
    return bool(layout["object_size"] + layout["stripe_unit"] > MOST)


def spread(layout: dict[str, Any]) -> None:
    """Give each chunk its own object, if the root's layout puts all chunks into a few."""
    if _narrow(layout):
        layout |= {"stripe_count": 1, "object_size": layout["stripe_unit"]}


def with_chunk(layout: dict[str, Any], size_bytes: int) -> str:
    """Change the size of a chunk; the number of chunks per object stays. Returns the reason if that fails."""
    if why := CEPH_SIZES.refusal(size_bytes):
        return why
    together = layout["object_size"] // layout["stripe_unit"]
    largest = MOST // size_bytes * size_bytes
    layout["object_size"] = largest if _narrow(layout) else min(largest, together * size_bytes)
    layout["stripe_unit"] = size_bytes
    return ""


def with_chunks_together(layout: dict[str, Any], chunks: int) -> str:
    """Put N consecutive chunks into one object. Returns the reason if they are too large."""
    size = chunks * layout["stripe_unit"]
    if size > MOST:
        return f"{chunks} chunks are {size} bytes; expected at most {MOST // 2**20} MiB in a row"
    layout |= {"stripe_count": 1, "object_size": size}
    return ""


def layout_of(site: Site, node: RunningNode, path: str) -> dict[str, Any]:
    """Layout of a file, or the one that files of a directory inherit."""
    output = python(site, node, _LAYOUT, "its layout", path)
    pairs = dict(word.split("=", 1) for word in output.split())
    # a client without the current pool map reports a new pool by its number
    named = {str(has["number"]): name for name, has in site.state["pools"].items()}
    pool = named.get(pairs["pool"], pairs["pool"])
    return {**{k: int(pairs[k]) for k in _NUMBERS}, "pool": pool}


def set_layout(site: Site, node: RunningNode, path: str, layout: Mapping[str, Any]) -> bool:
    """Set the layout of a file or directory; False for a file that ever had data, whose layout cannot
    change."""
    text = " ".join(f"{k}={v}" for k, v in layout.items())
    return python(site, node, _LAYOUT, "its layout", path, text).strip() != "held"


def located(site: Site, node: RunningNode, path: str) -> list[Extent]:
    """Extents of a file, one for each contiguous part of an object."""
    layout = layout_of(site, node, path)
    groups = site.state["pools"][layout["pool"]]["groups"]
    arguments = [path, layout["pool"], str(groups), *(str(layout[k]) for k in _NUMBERS)]
    answer = json.loads(python(site, node, _LOCATE, "where it is", *arguments).splitlines()[-1])
    names = site.state["osds"]
    on = {group: tuple(names[o] for o in osds) for group, osds in answer["on"].items()}
    extents, start = [], 0
    for length, group in answer["parts"]:
        extents.append(Extent(start, length, on[str(group)]))
        start += length
    return extents
