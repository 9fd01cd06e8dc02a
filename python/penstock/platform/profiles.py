"""Storage profiles by name: a ready one, or a JSON file in the study's directory."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from penstock.errors import BadInput


def ready_names() -> list[str]:
    """Names of the profiles that come with penstock."""
    folder = resources.files("penstock.profile") / "ready"
    if not folder.is_dir():
        return []
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json"))


def read_profile(name: str, base_dir: Path) -> dict[str, Any]:
    """The profile's JSON: file `name` relative to `base_dir`, or ready profile; BadInput for others."""
    if name in ready_names():
        text = (resources.files("penstock.profile") / "ready" / f"{name}.json").read_text()
    else:
        path = base_dir / name
        if not os.path.isfile(path):
            raise BadInput(f"no profile {name}")
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"profile {name} cannot be read: {error}") from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadInput(f"profile {name} is nested without end") from None
    except ValueError as error:
        raise BadInput(f"profile {name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"profile {name} is not a JSON object")
    return value


def scaled(profile: dict[str, Any], time_scale: float) -> dict[str, Any]:
    """The profile slowed down by `time_scale`: times multiplied, rates divided. BadInput for an invalid
    profile."""
    from penstock.profile.model import StorageProfile

    return StorageProfile.from_dict(profile).scaled(time_scale).to_dict()
