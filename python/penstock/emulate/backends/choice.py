"""Choice of a disk's back end by its request and the host's features, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.emulate.backends.base import Backend, shape_of
from penstock.errors import BadInput
from penstock.plugins import DISK_BACKENDS
from penstock.spec.cluster import DiskSpec


@dataclass(frozen=True)
class Choice:
    """A back end and the reason for it; `warnings`: requests that it does not fulfil."""

    name: str
    reason: str
    warnings: tuple[str, ...] = ()


def missing_here() -> dict[str, str]:
    """Requirement that this host lacks, by back end; empty if none."""
    return {name: _backend(name).missing() for name in DISK_BACKENDS}


def choose(disk: DiskSpec, lacking: Mapping[str, str] | None = None) -> Choice:
    """Choose the back end of a disk. `disk.backend` overrides, and is refused if it cannot fulfil the
    request.

    The first suitable one of the table: the model (`fuse`) serves disks with features (a profile, faults, …)
    and also delivers plain limits evenly; throttled devices serve plain limits on hosts without FUSE.
    `lacking`: requirement that the host lacks, by back end. Raises BadInput with the reason and the nearest
    alternative.
    """
    lacking = missing_here() if lacking is None else lacking
    if disk.backend != "auto":
        backend = _backend(disk.backend)
        if lacking.get(disk.backend):
            raise BadInput(
                f"disk {disk.name}: back end {disk.backend} cannot be used here: "
                f"{lacking[disk.backend]}; {_nearest(disk, lacking, without=disk.backend)}"
            )
        refusal = backend.refusal(disk)
        if refusal and not _overridden(disk):
            raise BadInput(
                f"disk {disk.name}: {refusal}; {_nearest(disk, lacking, without=disk.backend)}"
            )
        return Choice(disk.backend, "asked for", (refusal,) if refusal else ())
    reasons: list[str] = []
    for name in DISK_BACKENDS:
        reason = lacking.get(name) or _backend(name).refusal(disk)
        if not reason:
            return Choice(name, "; ".join([_why(disk, name), *reasons]))
        reasons.append(f"not {name}: {reason}")
    raise BadInput(
        f"disk {disk.name}: no back end can emulate it on this host: {'; '.join(reasons)}; "
        f"{_nearest(disk, lacking)}"
    )


def _backend(name: str) -> type[Backend]:
    loaded: type[Backend] = DISK_BACKENDS.load(name)
    return loaded


def _overridden(disk: DiskSpec) -> bool:
    """True if unfulfilled limits are accepted; this does not cover other features."""
    return disk.allow_unhonoured and not shape_of(disk)


def _why(disk: DiskSpec, name: str) -> str:
    shape = shape_of(disk)
    return f"{', '.join(shape)}: only the model has it" if shape else _backend(name).why


def _nearest(disk: DiskSpec, lacking: Mapping[str, str], without: str = "") -> str:
    usable = [name for name in DISK_BACKENDS if not lacking.get(name)]
    able = [n for n in usable if n != without and not _backend(n).refusal(disk)]
    if able:
        return f"the nearest alternative is backend: {able[0]}"
    if shape_of(disk) and usable:
        return "the nearest alternative is a disk with limits and nothing else"
    direct = replace(disk, io="direct")
    for name in usable:
        if not _backend(name).refusal(direct):
            return (
                f"the nearest alternative is backend: {name} with io: direct (limits then hold for "
                "direct I/O only), or allow_unhonoured: true"
            )
    return "penstock doctor lists the features of this host, and remedies for missing ones"
