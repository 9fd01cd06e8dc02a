"""Archive files of runs that other programs can read: `pack` writes `NAME.tar.zst`, `unpack` extracts it.

    NAME/README.md                description and instructions
    NAME/ro-crate-metadata.json   the description as RO-Crate 1.1
    NAME/SHA256SUMS               checksums of all other files, for `sha256sum -c`
    NAME/schemas/TABLE.json       columns, units and meanings
    NAME/csv/…                    tables of at most CSV_ROWS rows as CSV
    NAME/…                        the bundle, or the results of the study, unchanged

Equal runs give equal bytes. `unpack` extracts to a hidden directory next to the target and renames it after
all checksums are verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from penstock.archive.bundle import Bundle, partial_path
from penstock.archive.packing import Packed
from penstock.archive.schemas import TABLES
from penstock.archive.selection import Selection
from penstock.errors import BadInput, PenstockError, printable
from penstock.parts.interchange.crate import Part, crate
from penstock.text import duration
from penstock.writing import atomic_file

SUFFIX = ".tar.zst"
HOW_TO_OPEN = "`tar xf` gives {name}/README.md"
#: largest number of rows of a table that is exported as CSV too
CSV_ROWS = 100_000
#: limits of an archive that `unpack` accepts
MOST_FILES = 100_000
MOST_BYTES = 64 << 30
_MOST_NAME = 1_000
_MOST_DEPTH = 40
_MOST_SUMS = 64 << 20
_MOST_HEADER = 64 << 10
_CHUNK = 1 << 20
#: files and directories that `pack` adds at the top
_README, _CRATE, _SUMS = "README.md", "ro-crate-metadata.json", "SHA256SUMS"
_OWN = (_README, _CRATE, _SUMS, "csv", "schemas")


def pack(
    selection: Selection, target: Path, *, csv_rows: int = CSV_ROWS, license: str = ""
) -> Packed:
    """Write the selected runs to one archive file. Raises BadInput for a selection without a valid run."""
    if not selection.runs:
        raise BadInput(f"{selection.name}: found no valid run; expected one at least")
    name = _name_of(selection, target)
    files, omitted = _files(selection, target)
    manifests = _manifests(files)
    own: dict[str, bytes] = {}
    for path, source in files.items():
        if path.endswith(".parquet"):
            text = _as_csv(source, csv_rows)
            if text is not None:
                own[f"csv/{path.removesuffix('.parquet')}.csv"] = text
    for table in sorted({PurePosixPath(p).stem for p in files if p.endswith(".parquet")}):
        if table in TABLES:
            own[f"schemas/{table}.json"] = _schema(table)
    own[_README] = _readme(name, selection, files, own, manifests, omitted).encode()
    sums = {p: _sum(source) for p, source in files.items()}
    sums |= {p: hashlib.sha256(content).hexdigest() for p, content in own.items()}
    sizes = {p: source.stat().st_size for p, source in files.items()}
    sizes |= {p: len(content) for p, content in own.items()}
    parts = [Part(p, sizes[p], sums[p]) for p in sorted(sums)]
    own[_CRATE] = crate(name, parts, manifests, license)
    sums[_CRATE] = hashlib.sha256(own[_CRATE]).hexdigest()
    own[_SUMS] = "".join(f"{sums[p]}  {p}\n" for p in sorted(sums)).encode()
    moment = max(
        (int(m.get("times", {}).get("end_realtime_ns") or 0) for m in manifests), default=0
    )
    with atomic_file(target) as draft:
        _write(draft, name, files, own, sums, moment // 10**9)
        size = draft.stat().st_size
    total = sum(sizes.values())
    return Packed(target, name, size, len(files) + len(own), total, omitted)


def _name_of(selection: Selection, target: Path) -> str:
    """Top directory of the archive: the name of the run or the study, else that of the file."""
    name = ""
    if selection.kind == "run":
        name = _run_name(selection.path)
    elif selection.kind == "study":
        name = selection.path.resolve().name
    name = name or target.name.removesuffix(SUFFIX)
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-")[:100] or "runs"


def _files(selection: Selection, target: Path) -> tuple[dict[str, Path], list[str]]:
    """Files by their path in the archive, in order, and the paths of links and special files."""
    if selection.kind == "treatment":
        roots = {f"runs/{_run_name(run)}/": run for run in selection.runs}
        if len(roots) < len(selection.runs):
            roots = {f"runs/{run.name}/": run for run in selection.runs}
    else:
        roots = {"": selection.path}
    files: dict[str, Path] = {}
    omitted = []
    own = target.resolve()  # an earlier export to the same directory
    for prefix, root in roots.items():
        for top, folders, names in os.walk(root):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            links = [f for f in folders if os.path.islink(os.path.join(top, f))]
            folders[:] = [f for f in folders if f not in links]
            for each in [*links, *names]:
                path = Path(top, each)
                place = prefix + path.relative_to(root).as_posix()
                if each.startswith(".") or place.split("/")[0] in _OWN or path.resolve() == own:
                    continue
                if path.is_symlink() or not path.is_file() or not _fit(place):
                    omitted.append(place)
                else:
                    files[place] = path
    return dict(sorted(files.items())), sorted(omitted)


def _run_name(run: Path) -> str:
    """Name of a run: `r001` in a study, `NAME.2` for the second repeat of an experiment."""
    experiment = Bundle.open(run).manifest.get("experiment")
    if not isinstance(experiment, dict):
        return run.name
    return run.name.rpartition("-")[0] or run.name


def _manifests(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    manifests = []
    for path, source in files.items():
        if PurePosixPath(path).name == "manifest.json":
            with contextlib.suppress(PenstockError):
                manifests.append(Bundle.open(source.parent).manifest)
    return manifests


def _as_csv(path: Path, most_rows: int) -> bytes | None:
    """Format a table as CSV (RFC 4180, LF); None above `most_rows` rows and for an unreadable file."""
    try:
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > most_rows:
            return None
        table = file.read()
    except (pa.ArrowException, OSError):
        return None
    plain = [_plain(column.combine_chunks()) for column in table.columns]
    sink = pa.BufferOutputStream()
    options = pa_csv.WriteOptions(quoting_style="needed")
    pa_csv.write_csv(pa.table(plain, names=table.column_names), sink, options)
    return bytes(sink.getvalue().to_pybytes())


def _plain(column: pa.Array) -> pa.Array:
    """Convert a column for CSV: dictionaries are decoded, nested values become JSON."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.dictionary_decode()
    if pa.types.is_nested(kind):  # only in tables with few rows
        texts = [
            None if v is None else json.dumps(v, default=str, sort_keys=True)
            for v in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return column


def _schema(name: str) -> bytes:
    """Format the schema of a table as JSON."""
    table = TABLES[name]
    columns = [
        {"name": c.name, "type": c.type, "unit": c.unit, "meaning": c.meaning}
        for c in table.columns
    ]
    schema = {"table": name, "row": table.row, "key": list(table.key), "columns": columns}
    return (json.dumps(schema, indent=1, ensure_ascii=False) + "\n").encode()


def _readme(
    name: str,
    selection: Selection,
    files: Mapping[str, Path],
    own: Mapping[str, bytes],
    manifests: list[dict[str, Any]],
    omitted: list[str],
) -> str:
    tables = [p for p in files if p.endswith(".parquet")]
    # the largest table at the top, else of all
    top = [t for t in tables if "/" not in t] or tables or ["runs.parquet"]
    example = max(top, key=lambda t: (files[t].stat().st_size if t in files else 0, t))
    runs = len(manifests)
    lines = [
        f"# {name}",
        "",
        f"{runs} run{'' if runs == 1 else 's'} recorded by penstock, with all measurements. "
        "Reading it does not require penstock.",
        "",
        *[f"- {_summary(m)}" for m in manifests[:50]],
        *([f"- and {runs - 50} more"] if runs > 50 else []),
        "",
        "## Contents",
        "",
        "- `manifest.json`: what was run, when, on which host; whether the run is valid, and why not",
        "- `*.parquet`: the tables; `schemas/TABLE.json` has the meaning and unit of each column",
        f"- `csv/`: {sum(p.startswith('csv/') for p in own)} of {len(tables)} tables as CSV, those "
        f"with at most {CSV_ROWS:,} rows",
        "- `ro-crate-metadata.json`: this description as RO-Crate 1.1",
        "- `SHA256SUMS`: checksums; `sha256sum -c SHA256SUMS` verifies all files",
        "",
        "## How to open it",
        "",
        f"    python3 -c \"import pandas; print(pandas.read_parquet('{example}'))\"",
        f"    duckdb -c \"select * from '{example}'\"",
        f"    Rscript -e 'arrow::read_parquet(\"{example}\")'",
        "",
        f"With penstock: `penstock import {name}{SUFFIX}`, or unpack it and `penstock plot {name} lines`.",
    ]
    if omitted:
        shown = ", ".join(f"`{p}`" for p in omitted[:20])
        lines += ["", f"Omitted, because they are not regular files: {printable(shown)}."]
    return "\n".join(lines) + "\n"


def _summary(manifest: Mapping[str, Any]) -> str:
    about = manifest.get("experiment")
    name = (
        f"{about['name']}#{manifest.get('attempt', 1)}"
        if isinstance(about, dict) and "name" in about
        else str(manifest.get("run_id") or "run")
    )
    levels = ", ".join(f"{k} = {v}" for k, v in (manifest.get("levels") or {}).items())
    wall = (manifest.get("times") or {}).get("wall_s")
    took = duration(wall * 1e9) if isinstance(wall, int | float) else ""
    valid = "" if manifest.get("valid", True) else f"not valid: {manifest.get('reason') or '?'}"
    return printable("; ".join(w for w in (name, levels, took, valid) if w))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(
    draft: Path,
    name: str,
    files: Mapping[str, Path],
    own: Mapping[str, bytes],
    sums: Mapping[str, str],
    moment_s: int,
) -> None:
    with (
        pa.OSFile(str(draft), "wb") as plain,
        pa.CompressedOutputStream(plain, "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        # the descriptions come first
        order = sorted({*files, *own}, key=lambda p: (p not in (_README, _CRATE, _SUMS), p))
        for path in order:
            head = tarfile.TarInfo(f"{name}/{path}")
            head.mode, head.mtime = 0o644, moment_s
            if path in own:
                head.size = len(own[path])
                tar.addfile(head, io.BytesIO(own[path]))
                continue
            head.size = files[path].stat().st_size
            with files[path].open("rb") as content:
                read = _Summed(content)
                tar.addfile(head, read)
            if read.sum.hexdigest() != sums[path]:
                raise PenstockError(
                    f"{files[path]} was changed while it was read; expected a finished run"
                )


class _Summed:
    """A file object with the SHA-256 of the content read so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.sum.update(content)
        return content


def is_packed(path: Path) -> bool:
    """True for a file whose name ends with SUFFIX, and for any .zst file with Zstandard's magic number."""
    if path.name.endswith(SUFFIX):
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return path.is_file() and path.suffix == ".zst" and file.read(4) == b"\x28\xb5\x2f\xfd"
    return False


def unpack(path: Path, output: Path | None = None) -> Path:
    """Extract an archive to `output`, by default its top directory in the current one; return the directory.

    Raises BadInput for an invalid archive, and then leaves no files.
    """
    expected = f"expected what `penstock export X FILE{SUFFIX}` wrote"
    place = _free(output) if output is not None else None
    try:
        size = path.stat().st_size
        with (
            pa.OSFile(str(path), "rb") as plain,
            pa.CompressedInputStream(plain, "zstd") as content,
            tarfile.open(
                fileobj=cast(IO[bytes], _Bounded(content)), mode="r|", tarinfo=_Member
            ) as tar,
        ):
            return _take(tar, path, place, expected)
    except tarfile.TarError as error:
        raise BadInput(f"{path}: found {error} in {size:,} bytes; {expected}") from None
    except (pa.ArrowException, EOFError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{path}: found damage ({reason}); {expected}") from None
    except OSError as error:
        if error.errno is None:  # raised by Arrow
            reason = " ".join(str(error).split())
            raise BadInput(f"{path}: found damage ({reason}); {expected}") from None
        if error.filename in (str(path), None):
            raise BadInput(f"{path}: {error.strerror}; {expected}") from None
        raise


def _free(output: Path) -> Path:
    if os.path.lexists(output):
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    return output.absolute()


def _take(tar: tarfile.TarFile, path: Path, place: Path | None, expected: str) -> Path:
    draft: Path | None = None
    sums: dict[str, str] = {}
    name = ""
    try:
        total = 0
        for number, member in enumerate(tar):
            top, _, inner = member.name.partition("/")
            if number >= MOST_FILES:
                raise BadInput(f"{path}: found more than {MOST_FILES} files; expected that at most")
            plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
            if not plain or not inner or not _fit(member.name) or top != (name or top):
                shown = printable(member.name[:200])
                raise BadInput(
                    f"{path}: found {shown!r}, no file beneath one directory; {expected}"
                )
            if draft is None:
                name = top
                place = place or _free(Path(top))
                draft = partial_path(place)
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True, mode=0o700)
            if inner in sums:
                raise BadInput(f"{path}: found {printable(inner)!r} twice; {expected}")
            total += member.size
            free_bytes = shutil.disk_usage(draft).free
            if total > MOST_BYTES or member.size > free_bytes:
                raise BadInput(
                    f"{path}: found {total:,} bytes or more; expected {MOST_BYTES:,} at most, "
                    f"and space for them ({free_bytes:,} bytes are free)"
                )
            sums[inner] = _extract(tar, member, draft / inner)
        if draft is None or place is None:
            raise BadInput(f"{path}: found nothing in it; {expected}")
        _check(path, draft, sums, expected)
        draft.chmod(0o755 & ~_mask())
        os.rename(draft, place)
        return place
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    """Write one file; return its SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    total = hashlib.sha256()
    # the directory was created empty, so no component of the path is a link
    with target.open("xb") as file:
        while part := content.read(_CHUNK):
            total.update(part)
            file.write(part)
    if target.stat().st_size != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return total.hexdigest()


def _check(path: Path, draft: Path, sums: Mapping[str, str], expected: str) -> None:
    listed = draft / _SUMS
    if _SUMS not in sums or listed.stat().st_size > _MOST_SUMS:
        raise BadInput(f"{path}: found no {_SUMS}; {expected}")
    recorded: dict[str, str] = {}
    for line in listed.read_text("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        recorded[name] = digest
    for name, digest in sums.items():
        if name != _SUMS and recorded.get(name) != digest:
            actual = "no sum of it" if name not in recorded else f"the sum {digest[:12]}…"
            raise BadInput(
                f"{path}: found {printable(name)} with {actual}; expected {recorded.get(name, 'one')[:12]}…, "
                f"as in its {_SUMS}: it was changed or damaged"
            )
    missing = [name for name in recorded if name not in sums]
    if missing:
        raise BadInput(
            f"{path}: found no {printable(missing[0])}, which its {_SUMS} lists; {expected}"
        )


def _fit(name: str) -> bool:
    """True for a relative path without `..` that is valid on every file system."""
    parts = name.split("/")
    return (
        len(name) <= _MOST_NAME
        and len(parts) <= _MOST_DEPTH
        and name.isprintable()
        and "\\" not in name
        and all(
            p and p not in (".", "..") and len(p.encode("utf-8", "replace")) <= 255 for p in parts
        )
    )


class _Member(tarfile.TarInfo):
    """A member with bounded headers: tarfile reads the complete header of a long name into memory."""

    def _proc_member(self, tarfile_: tarfile.TarFile) -> tarfile.TarInfo:
        extended = self.type not in tarfile.SUPPORTED_TYPES or self.type in (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if extended and self.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(tarfile_)  # type: ignore[misc]
        return member


class _Bounded:
    """A stream that raises ReadError after MOST_BYTES of content and the headers of MOST_FILES."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._remaining_bytes = MOST_BYTES + MOST_FILES * 4096

    def read(self, size: int = -1) -> bytes:
        content = bytes(self._stream.read(size))
        self._remaining_bytes -= len(content)
        if self._remaining_bytes < 0:
            raise tarfile.ReadError(f"more than {MOST_BYTES} bytes")
        return content
