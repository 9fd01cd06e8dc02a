"""JSON Schema of the platform file, generated from the models of `platform/file.py`."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from penstock.platform.fields import (
    BANDWIDTH_PATTERN,
    PRICE_PATTERN,
    TIME_PATTERN,
    UNCERTAIN,
)
from penstock.platform.file import PlatformFile
from penstock.platform.schedule_expansion import EXPANSIONS, FEATURES

_VALUE = {"type": ["string", "number"]}
_ESTIMATE = {
    "type": "object",
    "description": "A measured value with its interval.",
    "required": ["value"],
    "additionalProperties": False,
    "properties": {
        "value": _VALUE,
        "low": _VALUE,
        "high": _VALUE,
        "level": {"type": "string", "description": "Of the interval; 95%."},
        "n": {"type": "integer", "minimum": 1, "description": "Measurements."},
        "method": {"type": "string"},
        "date": {"type": "string"},
        "host": {"type": "string"},
        "kernel": {"type": "string"},
        "converged": {
            "type": "boolean",
            "description": "Whether the interval became narrow enough.",
        },
        "clamped": {"type": "boolean", "description": "Whether the value was cut at zero."},
        "note": {"type": "string"},
    },
}
#: short forms: definition → its alternatives
_SHORT = {
    "ServiceFile": {
        "type": "string",
        "pattern": TIME_PATTERN,
        "description": "A duration: the overhead alone.",
    },
    "PriceFile": {
        "type": "string",
        "pattern": PRICE_PATTERN,
        "description": "A price per host and time.",
    },
    "LinkFile": {"type": "string", "pattern": BANDWIDTH_PATTERN, "description": "A bandwidth."},
    "NetworkFile": {"type": "string", "pattern": BANDWIDTH_PATTERN, "description": "A bandwidth."},
    "AssumedFile": {"type": "string", "description": "A path; the value is taken as within 50%."},
}


def with_short_events(event: dict[str, Any]) -> dict[str, Any]:
    """Schema of a change (`event`), or of a short form that expands to several."""
    plain = sorted(event["properties"])
    keys = sorted({*plain, *EXPANSIONS, *FEATURES})
    short = {
        "type": "object",
        "description": "Keys with dots, or a trace, ramp, pattern, random or markov: docs/emulation.md.",
        "propertyNames": {"anyOf": [{"enum": keys}, {"pattern": r"^[a-z_]+(\.[a-z_]+)+$"}]},
        "not": {"propertyNames": {"enum": plain}},
    }
    return {"anyOf": [event, short]}


def platform_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a platform file."""
    schema = _widened(PlatformFile.model_json_schema(by_alias=True, mode="validation"))
    definitions = schema.pop("$defs")
    for name, short in _SHORT.items():
        estimate = [] if name == "AssumedFile" else [{"$ref": "#/$defs/Estimate"}]
        definitions[name] = {"anyOf": [short, definitions[name], *estimate]}
    definitions["Estimate"] = _ESTIMATE
    definitions["EventFile"] = with_short_events(definitions["EventFile"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "penstock platform",
        "$defs": definitions,
        **{k: v for k, v in schema.items() if k != "title"},
    }


def _widened(node: Any) -> Any:
    """Allow estimates for values that may be uncertain."""
    if isinstance(node, list):
        return [_widened(n) for n in node]
    if not isinstance(node, dict):
        return node
    if UNCERTAIN not in node:
        return {k: _widened(v) for k, v in node.items()}
    outer = {k: node[k] for k in ("default", "description", "title") if k in node}
    inner = {k: v for k, v in node.items() if k not in (*outer, UNCERTAIN)}
    return {"anyOf": [inner, {"$ref": "#/$defs/Estimate"}], **outer}


def schema_text() -> str:
    """The text of `platform.schema.json`."""
    return json.dumps(platform_schema(), indent=2, ensure_ascii=False) + "\n"


def published_schema() -> str:
    """Text of the schema that comes with penstock."""
    return (resources.files("penstock.platform") / "platform.schema.json").read_text()


if __name__ == "__main__":
    from pathlib import Path

    (Path(__file__).parent / "platform.schema.json").write_text(schema_text())
