"""A place where runs execute: this host, for studies that set `TOY_PLACE`."""

from __future__ import annotations

from penstock.campaign.places.host_stage import HostStage
from penstock.campaign.places.stage import Site
from penstock.study.resolve import ResolvedRun


class ToyPlace(HostStage):
    """The host, named in the manifest."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.about = {"toy": True}

    @classmethod
    def takes(cls, resolved: ResolvedRun) -> bool:
        return "TOY_PLACE" in resolved.env
