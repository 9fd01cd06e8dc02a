"""Metadata of exported runs as RO-Crate 1.1 (https://w3id.org/ro/crate/1.1), JSON-LD."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from penstock.archive.bundle import command_line
from penstock.archive.schemas import TABLES
from penstock.version import version

PROFILE = "https://w3id.org/ro/crate/1.1"
_CONTEXT = [f"{PROFILE}/context", {"sha256": "https://schema.org/sha256"}]
_MEDIA = {
    ".parquet": "application/vnd.apache.parquet",
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".html": "text/html",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
    ".txt": "text/plain",
}
_SOFTWARE = "#penstock"


@dataclass(frozen=True)
class Part:
    """One file of the archive; `path` is relative to its top directory."""

    path: str
    size_bytes: int
    sha256: str


def crate(
    name: str, parts: Sequence[Part], manifests: Sequence[Mapping[str, Any]], license: str
) -> bytes:
    """Build the document. It is dated with the end of the last run, so that equal runs give equal bytes."""
    ends = [t for m in manifests if (t := (m.get("times") or {}).get("end_realtime_ns"))]
    runs = [_action(n, m) for n, m in enumerate(manifests)]
    root: dict[str, Any] = {
        "@id": "./",
        "@type": "Dataset",
        "name": name,
        "description": f"{len(manifests)} run{'' if len(manifests) == 1 else 's'} of storage and I/O "
        "measurements recorded by penstock: tables (Parquet, CSV), what was run, whether it is valid.",
        "datePublished": _iso(max(ends, default=0)),
        "license": {"@id": license} if "://" in license else license or "not stated",
        "hasPart": [{"@id": _id(p.path)} for p in parts],
        "mentions": [{"@id": a["@id"]} for a in runs],
    }
    graph: list[dict[str, Any]] = [
        {
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "conformsTo": {"@id": PROFILE},
            "about": {"@id": "./"},
        },
        root,
        *[_file(p) for p in parts],
        *runs,
        {
            "@id": _SOFTWARE,
            "@type": "SoftwareApplication",
            "name": "penstock",
            "softwareVersion": version(),
        },
    ]
    if "://" in license:
        graph.append({"@id": license, "@type": "CreativeWork", "name": license})
    return (json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=1) + "\n").encode()


def _file(part: Part) -> dict[str, Any]:
    path = PurePosixPath(part.path)
    table = TABLES.get(path.stem) if path.suffix in (".parquet", ".csv") else None
    return {
        "@id": _id(part.path),
        "@type": "File",
        "name": path.name,
        **({"description": f"each row: {table.row}"} if table else {}),
        "contentSize": str(part.size_bytes),
        "encodingFormat": _MEDIA.get(path.suffix, "application/octet-stream"),
        "sha256": part.sha256,
    }


def _action(number: int, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateAction of one run."""
    times = manifest.get("times") or {}
    about = manifest.get("experiment")
    name = about["name"] if isinstance(about, dict) else manifest.get("run_id") or "run"
    action: dict[str, Any] = {
        "@id": f"#run-{number + 1}",
        "@type": "CreateAction",
        "name": f"{name}, attempt {manifest.get('attempt', 1)}",
        "instrument": {"@id": _SOFTWARE},
        "result": {"@id": "./"},
        "actionStatus": {
            "@id": "http://schema.org/"
            + ("CompletedActionStatus" if manifest.get("valid", True) else "FailedActionStatus")
        },
    }
    if line := command_line(dict(manifest)):
        action["description"] = line
    if manifest.get("reason"):
        action["error"] = str(manifest["reason"])
    for key, source in (("startTime", "start_realtime_ns"), ("endTime", "end_realtime_ns")):
        if times.get(source):
            action[key] = _iso(int(times[source]))
    return action


def _iso(utc_ns: int) -> str:
    return datetime.fromtimestamp(utc_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _id(path: str) -> str:
    """Encode a path as a relative reference of RFC 3986."""
    return quote(path, safe="/")
