"""Executor of Snakemake that runs jobs on penstock's virtual nodes, with their files in a shared store.

`snakemake --executor penstock` loads this module by its name; docs/snakemake.md describes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from penstock.errors import PenstockError
from snakemake_executor_plugin_penstock.executor import Executor

if TYPE_CHECKING:
    from penstock.parts.stores.snakemake.store_view import StoreView

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
)


def _option(text: str, kind: type = str, choices: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Metadata of a field, as Snakemake expects them."""
    return {"help": text, "type": kind, "choices": choices}


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """Settings, as options `--penstock-…`.

    They are created before Snakemake changes to the working directory, so the store is mounted then.
    """

    store: str | None = field(
        default=None, metadata=_option("Store that is up (default: the only one).")
    )
    platform: Path | None = field(
        default=None,
        metadata=_option("Platform file whose store is used, and started if it is not up.", Path),
    )
    engine: str | None = field(
        default=None, metadata=_option("Engine of the store, instead of the platform file's.")
    )
    head: str | None = field(
        default=None,
        metadata=_option(
            "Client node through which Snakemake itself uses the store (default: the first)."
        ),
    )
    hints: str = field(
        default="always",
        metadata=_option(
            "Placement hints of output files, from the graph of the workflow; auto: those that pay "
            "according to the prediction.",
            choices=("always", "auto", "never"),
        ),
    )
    scheduler: str = field(
        default="data-location",
        metadata=_option(
            "Node of a job: the one with most of its input bytes, or the least busy one.",
            choices=("data-location", "workqueue"),
        ),
    )
    slots: int | None = field(
        default=None,
        metadata=_option("Threads of jobs per node (default: its processors).", int),
    )
    records: Path = field(
        default=Path(".penstock"),
        metadata=_option("Directory for the table of the jobs and for their output.", Path),
    )

    def __post_init__(self) -> None:
        """Mount the store in this process."""
        from penstock.parts.stores.snakemake.store_view import open_view

        if self.slots is not None and self.slots < 1:
            raise WorkflowError(f"--penstock-slots: found {self.slots}; expected at least 1")
        if self.hints == "auto" and self.platform is None:
            expected = (
                "that of the store (--penstock-platform), which has the values of predictions"
            )
            raise WorkflowError(
                f"--penstock-hints auto: found no platform file; expected {expected}"
            )
        try:
            self.view: StoreView = open_view(self.store, self.platform, self.engine, self.head)
        except PenstockError as error:
            raise WorkflowError(f"penstock: {error}") from None
