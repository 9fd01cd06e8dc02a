"""JSON Schema of the study file, generated from the models of `study/file.py`."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from penstock.platform.schema import with_short_events
from penstock.study.file import StudyFile

#: reference to a platform file
_BY_FILE = [
    {"type": "string", "description": "Path of a platform file."},
    {
        "type": "object",
        "description": "A platform file with other values.",
        "required": ["file"],
        "additionalProperties": False,
        "properties": {
            "file": {"type": "string", "description": "Path of a platform file."},
            "set": {
                "type": "object",
                "description": "Dotted path → value (may be a template), such as hosts.nodes.count.",
            },
        },
    },
]


def study_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a study file."""
    schema = StudyFile.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"]
    definitions["PlatformFile"] = {"anyOf": [*_BY_FILE, definitions["PlatformFile"]]}
    definitions["EventFile"] = with_short_events(definitions["EventFile"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "penstock study",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def schema_text() -> str:
    """The text of `study.schema.json`."""
    return json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"


def published_schema() -> str:
    """Text of the schema that comes with penstock."""
    return (resources.files("penstock.study") / "study.schema.json").read_text()


if __name__ == "__main__":
    from pathlib import Path

    (Path(__file__).parent / "study.schema.json").write_text(schema_text())
