"""A platform of another program, as returned by a reader of `penstock.plugins.PLATFORM_FORMATS`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import Platform, read_platform


@dataclass
class Foreign:
    """Content of a platform file converted from another format, and the parts without a counterpart, one line
    each."""

    document: dict[str, Any]
    left_out: list[str] = field(default_factory=list)
    #: content without effect here, one line each
    notes: list[str] = field(default_factory=list)

    def platform(self, base_dir: Path) -> Platform:
        """The platform, validated as by `penstock platform check`. Raises BadInput."""
        raw = json.dumps(self.document).encode()
        platform = read_platform(raw, base_dir / "imported.yaml", predicted=None)
        if not platform.predictable:
            checked_cluster(platform)
        return platform
