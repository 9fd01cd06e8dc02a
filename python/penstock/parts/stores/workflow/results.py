"""Results of a workflow: verified copies outside of the store, with a manifest of checksums."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.staging import Staged, matches
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.running.copies import copy_out
from penstock.parts.stores.workflow.running.run_files import RunFiles, results_of
from penstock.writing import write_atomic

#: manifest in the directory of the results, as sha256sum(1) reads it
MANIFEST = "SHA256SUMS"


def save_results(
    workload: Workload,
    store: Store,
    files: RunFiles,
    existing: Collection[str],
    target: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Staged]:
    """Copy the results among the existing files to the directory `target`.

    Results are files that no task reads, and those that match the patterns `keep` of the platform.
    """
    patterns, preloaded = store.spec.kept, {f.name for f in workload.files if f.preloaded}
    results = set(results_of(workload))
    names = [
        name
        for name in existing
        if name in results or (name not in preloaded and matches(files.paths[name], patterns))
    ]
    if not names:
        return []
    target.mkdir(parents=True, exist_ok=True)
    pairs = {files.inside(name): target / files.paths[name] for name in names}
    for path in pairs.values():
        if not path.parent.resolve().is_relative_to(target.resolve()):
            raise BadInput(f"{path}: found a link out of {target}; expected a directory")

    def heard(done: int, total: int) -> None:
        if progress is not None:
            progress("results", done, total)

    staged = copy_out(store, pairs, None, heard)
    rows = sorted(
        f"{one.sha256}  {Path(one.backend).relative_to(target.absolute())}" for one in staged
    )
    manifest = target / MANIFEST
    while manifest in pairs.values():  # a result has that name
        manifest = manifest.with_name(f"{manifest.name}.penstock")
    write_atomic(manifest, "\n".join(rows) + "\n")
    return staged
