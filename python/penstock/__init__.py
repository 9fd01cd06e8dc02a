"""penstock: one experiment platform for the storage and I/O performance of data systems.

From Python: `Study`, `run`, `Campaign`, `trace`, `Trace`, `predict_workflow`, `explore`,
`experiment`, `series` (and its warning `PartialData`) and `Disk`, of
`penstock.api`, and `Cluster`, of `penstock.emulate.cluster.cluster`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api import Campaign as Campaign
    from penstock.api import Disk as Disk
    from penstock.api import Study as Study
    from penstock.api import Trace as Trace
    from penstock.api import run as run
    from penstock.api import trace as trace
    from penstock.archive.series.incomplete import PartialData as PartialData
    from penstock.emulate.cluster.cluster import Cluster as Cluster

    __version__: str

_API = (
    *("Campaign", "Disk", "Study", "Trace"),
    *("run", "trace"),
)


def __getattr__(name: str) -> Any:
    """Lazy import: all names together take longer than a command line may."""
    if name == "__version__":
        from penstock.version import version

        return version()
    if name in _API:
        from penstock import api

        return getattr(api, name)
    if name == "Cluster":
        from penstock.emulate.cluster.cluster import Cluster

        return Cluster
    if name == "PartialData":
        from penstock.archive.series.incomplete import PartialData

        return PartialData
    from penstock.plugins import API

    return API.attribute(__name__, name)


def __dir__() -> list[str]:
    from penstock.plugins import API

    return sorted([*globals(), *_API, *API, "Cluster", "PartialData", "__version__"])
