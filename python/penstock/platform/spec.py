"""The platform of a study: nodes with memory and disks. Templated fields may name factors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DiskSpec(_Frozen):
    """One disk of a node: a directory whose storage behaves as `profile` says, `time_scale` times slower;
    or, without a profile, the plain host `directory` as it is. Exactly one of the two is there."""

    name: str
    profile: str | None = None
    directory: str | None = None
    time_scale: str = "1"
    size: str | None = None
    mount: str | None = None


class NodeSpec(_Frozen):
    """One node: its memory limit (text such as `512MiB`, page cache included), processors and disks."""

    name: str
    memory: str | None = None
    cpus: str | None = None
    disks: tuple[DiskSpec, ...] = ()


class Platform(_Frozen):
    """The nodes of a study."""

    nodes: tuple[NodeSpec, ...]
