"""What a sample's entity says: labels of the series that it comes to be."""

from __future__ import annotations

import re

from penstock.observe.monitor.latency import bucket_of
from penstock.observe.monitor.points import canonical_labels

PROCESS = re.compile(r"(?:node=(?P<node>\S+) )?pid=(?P<pid>\d+) comm=(?P<comm>.*)")
_SOURCE = re.compile(r"source=(?P<source>[a-z_]+)")


def labels_of_entity(entity: str) -> str:
    """A bucket's edge, a process's number, name and node, and a source of the sampler are labels of their
    own; all else is the label `entity`."""
    bucket = bucket_of(entity)
    if bucket is not None:
        return canonical_labels({"entity": bucket[0], "le": bucket[1]})
    found = PROCESS.fullmatch(entity) or _SOURCE.fullmatch(entity)
    if found is not None:
        return canonical_labels({k: v for k, v in found.groupdict().items() if v is not None})
    return canonical_labels({"entity": entity})
