"""Interface of the HTTP server for routes, with the lists in which they register."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.archive.catalogue import Catalogue
from penstock.routes.spooled import ConcurrencyLimit

Document = dict[str, Any]


class ExperimentSource(Protocol):
    """Experiments for the live page."""

    def documents(self) -> list[Document]:
        """Running experiments."""

    def find(self, name: str, reader: str | None) -> tuple[str, str, int]:
        """Owner, name and repeat of an experiment. Raises PenstockError if `reader` cannot read it."""


@dataclass(kw_only=True)
class Server:
    """The server, for routes of all parts, which append to its lists before the first request.

    `config` is the file of `serve --config`. `store` and `targets` replace the experiments of this user and
    the servers of `config`.
    """

    catalogue: Callable[[], Catalogue]
    config: Path | None = None
    store: Callable[[], Any] | None = None
    targets: Any = None
    #: limit of actions that need much memory
    limit: ConcurrencyLimit = field(default_factory=ConcurrencyLimit)
    #: regular expressions of paths that accept tokens of users
    user_paths: list[str] = field(default_factory=list)
    #: paths whose POST requests only read
    read_only_posts: list[str] = field(default_factory=list)
    #: prefixes of paths of data: an invalid request is answered by 400, that of a page by 404
    data_prefixes: list[str] = field(default_factory=list)
    #: contexts that are open while the server runs
    background: list[Callable[[], AbstractAsyncContextManager[None]]] = field(default_factory=list)
    #: experiments of the live page
    experiments: ExperimentSource | None = None

    def running_experiments(self) -> list[Document]:
        """Running experiments; none if no route registered any."""
        return [] if self.experiments is None else self.experiments.documents()
