"""A platform that another program describes, as a reader of `penstock.plugins.PLATFORM_FORMATS` gives it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import Platform, read_platform


@dataclass
class Foreign:
    """A platform file's content made of a foreign one, and what of that has no counterpart, one line each."""

    document: dict[str, Any]
    left_out: list[str] = field(default_factory=list)
    #: content that makes no difference here, one line each
    notes: list[str] = field(default_factory=list)

    def platform(self, base_dir: Path) -> Platform:
        """The platform, checked as `penstock platform check` checks a file. Raises BadInput."""
        raw = json.dumps(self.document).encode()
        platform = read_platform(raw, base_dir / "imported.yaml", predicted=None)
        if not platform.predictable:
            checked_cluster(platform)
        return platform
