"""Inclusion of files that a design refers to: treatments (CSV), an earlier study as a pilot.

A loaded study is self-contained, so that its frozen copy is readable anywhere.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path as FilePath

from penstock.spec.source import Path, Source, read_input, separator_of
from penstock.study.pilot import pilot_of

#: limits of bytes and rows of a table of treatments
_MOST_BYTES, _MOST_ROWS = 16 << 20, 1 << 16


def include_treatments(source: Source, base_dir: FilePath) -> bool:
    """Include the files of `design.kind.table.file`, `design.kind.*.keep` and `design.pilot`; True if any."""
    document = source.value if isinstance(source.value, dict) else {}
    design = document.get("design")
    if not isinstance(design, dict):
        return False
    changed = False
    kind = design.get("kind")
    for name, options in kind.items() if isinstance(kind, dict) else ():
        if not isinstance(options, dict):
            continue
        for key, to in (("file", "rows"), ("keep", "keep")):
            option = options.get(key)
            if isinstance(option, str) and (key, name) != ("file", "full"):
                rows = _rows(source, ("design", "kind", name, key), base_dir / option)
                if rows is None:
                    continue
                del options[key]
                options[to] = rows
                changed = True
    if isinstance(design.get("pilot"), str):
        pilot = pilot_of(source, ("design", "pilot"), base_dir / design["pilot"])
        if pilot is not None:
            design["pilot"] = pilot
            changed = True
    return changed


def _rows(source: Source, path: Path, file: FilePath) -> list[dict[str, str]] | None:
    """Rows of a CSV file as texts; None, with a mistake at the study's position or the file's line."""
    raw = read_input(file, "a CSV file of treatments")
    if len(raw) > _MOST_BYTES:
        source.mistake(path, f"{file} of {len(raw)} bytes", f"at most {_MOST_BYTES}")
        return None
    try:
        text = raw.decode("utf-8-sig")
        table = list(csv.reader(io.StringIO(text), strict=True, delimiter=separator_of(text)))
    except (UnicodeDecodeError, csv.Error) as error:
        source.mistake(path, f"{file}: {error}", "a CSV file in UTF-8")
        return None
    if len(table) < 2 or len(table) > _MOST_ROWS:
        source.mistake(
            path, f"{file} of {len(table)} lines", f"a header and 1 to {_MOST_ROWS - 1} treatments"
        )
        return None
    head = [name.strip() for name in table[0]]
    if repeated := next((name for name in head if head.count(name) > 1), None):
        source.mistake(path, f"{file}:1: the column {repeated!r} several times", "it once")
        return None
    read_rows: list[dict[str, str]] = []
    for line, row in enumerate(table[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(head):
            source.mistake(
                path, f"{file}:{line}: {len(row)} values", f"{len(head)}, as the header has"
            )
            return None
        read_rows.append({n: cell.strip() for n, cell in zip(head, row, strict=True)})
    return read_rows
