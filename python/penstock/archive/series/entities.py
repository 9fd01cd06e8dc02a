"""Labels of a sample's entity: `vda`, `vda le=0.000131072`, `node=n1 pid=7 comm=fio`, `source=cpu`."""

from __future__ import annotations

import re

PROCESS = re.compile(r"(?:node=(?P<node>\S+) )?pid=(?P<pid>\d+) comm=(?P<comm>.*)")
_BUCKET = re.compile(r"(?P<entity>\S+) le=(?P<le>\+Inf|[0-9.]+)")
_SOURCE = re.compile(r"source=(?P<source>[a-z_]+)")


def bucket_of(entity: str) -> tuple[str, str] | None:
    """Device and edge of a bucket's entity; None for others."""
    bucket = _BUCKET.fullmatch(entity)
    return None if bucket is None else (bucket["entity"], bucket["le"])


def entity_labels(entity: str) -> dict[str, str]:
    """Labels sorted by name: a bucket's edge, a process's number, name and node, a source of the sampler; the
    rest is the label `entity`."""
    for pattern in (_BUCKET, PROCESS, _SOURCE):
        if match := pattern.fullmatch(entity):
            return {k: v for k, v in sorted(match.groupdict().items()) if v is not None}
    return {"entity": entity}
