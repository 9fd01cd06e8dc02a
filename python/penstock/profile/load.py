"""Profiles by name or path."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from penstock.errors import BadInput
from penstock.profile.model import StorageProfile


def ready_names() -> list[str]:
    """Names of the built-in profiles."""
    folder = resources.files("penstock.profile") / "ready"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json"))


def load_profile(name_or_path: str, base_dir: Path | None = None) -> StorageProfile:
    """The built-in profile of that name, or the JSON file at that path (relative to `base_dir`).

    Raises BadInput, with the line in the file, if there is none or it is not a profile.
    """
    if name_or_path in ready_names():
        file = resources.files("penstock.profile") / "ready" / f"{name_or_path}.json"
        return StorageProfile.from_json(file.read_text(), f"{name_or_path}.json")
    path = (base_dir or Path()) / name_or_path
    if not os.path.isfile(path):
        names = ", ".join(ready_names())
        raise BadInput(f"no profile {name_or_path}: it is neither a file nor one of {names}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"profile {path} cannot be read: {error}") from None
    return StorageProfile.from_json(text, str(path))
