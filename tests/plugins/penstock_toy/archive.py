"""An archive format: a ZIP file."""

from __future__ import annotations

import zipfile
from pathlib import Path

from penstock.archive.packing import Packed
from penstock.archive.selection import Selection
from penstock.errors import BadInput

HOW_TO_OPEN = "`unzip` opens it"


def pack(selection: Selection, target: Path, *, license: str = "") -> Packed:
    paths = sorted(path for path in selection.path.rglob("*") if path.is_file())
    with zipfile.ZipFile(target, "w") as out:
        for path in paths:
            out.write(path, path.relative_to(selection.path))
    total = sum(path.stat().st_size for path in paths)
    return Packed(target, target.stem, target.stat().st_size, len(paths), total)


def is_packed(path: Path) -> bool:
    return path.suffix == ".toy"


def unpack(path: Path, output: Path | None = None) -> Path:
    directory = output or Path(path.stem)
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(directory)
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: found {error}; expected a ZIP file") from error
    return directory
