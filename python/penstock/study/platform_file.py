"""A platform file as a study's platform: its groups become nodes of the study, before all checks."""

from __future__ import annotations

import copy
from pathlib import Path as FilePath
from typing import Any

from penstock.spec.machine import EmulatedPart, ImpairmentFile, MachineFile
from penstock.spec.source import Path, Source

_AT: Path = ("platform",)
_OF_NETWORK = ("latency", "subnet", "matrix", "host", "engine", *ImpairmentFile.model_fields)
_WIRE = ("bandwidth", "out", "in", "latency", *ImpairmentFile.model_fields)


def include_platform(source: Source, base_dir: FilePath) -> bool:
    """Replace `platform: FILE` by the nodes of the file; returns True if there was one.

    `platform: {file: FILE, set: {dotted path: value}}` sets values first, which may be templates. Records
    errors of these two keys in `source`; BadInput for an invalid platform file.
    """
    section = source.value.get("platform")
    if isinstance(section, str):
        section = {"file": section}
    if not isinstance(section, dict) or "file" not in section:
        return False
    file, changes = section["file"], section.get("set") or {}
    for key in [k for k in section if k not in ("file", "set")]:
        source.mistake(
            (*_AT, key), f"'{key}' in addition to file", "file and set, or nodes", key=True
        )
    if not isinstance(file, str) or not file.strip():
        source.mistake((*_AT, "file"), f"{file!r}", "the path of a platform file")
    elif not isinstance(changes, dict):
        source.mistake((*_AT, "set"), "no mapping", "dotted paths and values")
    else:
        source.value["platform"] = _nodes(source, base_dir, file, changes)
        return True
    source.value["platform"] = {"nodes": [{"name": "unknown"}]}
    return True


def _nodes(
    source: Source, base_dir: FilePath, file: str, changes: dict[str, Any]
) -> dict[str, Any]:
    from penstock.platform.hosts import load_platform, moved
    from penstock.platform.lower import parts
    from penstock.platform.paths import NoPath, find, put

    path = base_dir / file
    platform = load_platform(path, predicted=False)
    document = moved(copy.deepcopy(platform.plain), path.parent.resolve(), base_dir)
    for name, value in changes.items():
        try:
            put(document, find(document, str(name)), value)
        except NoPath as error:
            source.mistake((*_AT, "set", name), error.actual, error.expected, key=True)
    network = document.get("network") or {}
    section: dict[str, Any] = {"nodes": []}
    for group in document["hosts"]:
        templated = not isinstance(group.get("count"), int)
        if templated and group.get("except"):
            expected = f"no 'except' in the group {group['group']}, or a number"
            source.mistake((*_AT, "set"), "a count by template", expected, key=True)
        if templated or not group.get("except"):
            one = {**document, "hosts": [{**group, "count": 1}]}
            (_, _, part), *_ = parts(one)
            section["nodes"].append({"name": group["group"], "count": group["count"], **_own(part)})
        else:
            for _, index, part in parts({**document, "hosts": [group]}):
                section["nodes"].append({"name": f"{group['group']}-{index}", **_own(part)})
    main = {k: network[k] for k in _OF_NETWORK if network.get(k) is not None}
    if main:
        section["network"] = main
    for key in EmulatedPart.model_fields:
        if document.get(key) is not None:
            section[key] = document[key]
    return section


def _own(part: dict[str, Any]) -> dict[str, Any]:
    """Node of a host's description; its link is an interface in the network net."""
    names = {"in_": "in"}
    keys = [names.get(k, k) for k in MachineFile.model_fields]
    node = {k: part[k] for k in keys if part.get(k) is not None}
    link = part.get("network") or {}
    own = {k: link[k] for k in _WIRE if link.get(k) is not None}
    interfaces = node.get("interfaces") or [{"network": "net"}]
    node["interfaces"] = [
        {**own, **i} if i.get("network", "net") == "net" else i for i in interfaces
    ]
    return node
