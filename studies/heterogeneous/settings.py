"""The five limit settings of the published Hadoop study at a twentieth of its rates, and their profiles.

`python studies/heterogeneous/settings.py` writes the profiles into `profiles/`, which the study files name.

Published (A. Saif, Experimental Methods for the Evaluation of Big Data Systems, 2020, section
3.4): all data nodes at 120 MB/s; one of them at 5; all at 60; all at 30; one half at 60, the
other at 30.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.platform.profiles import read_profile, scaled

#: setting → limit of reads and of writes of each node [B/s]: `rest`, the `one`, and the other half (`other`)
SETTINGS = {
    "all-fast": {"rest": 6e6, "one": 6e6, "other": 6e6},
    "one-slow": {"rest": 6e6, "one": 0.25e6, "other": 6e6},
    "all-half": {"rest": 3e6, "one": 3e6, "other": 3e6},
    "all-quarter": {"rest": 1.5e6, "one": 1.5e6, "other": 1.5e6},
    "half-half": {"rest": 3e6, "one": 3e6, "other": 1.5e6},
}
#: the same for TeraSort, where starting a task takes longer
TERASORT = {
    "all-fast": {"rest": 2e6, "one": 2e6, "other": 2e6},
    "one-slow": {"rest": 2e6, "one": 0.3e6, "other": 2e6},
    "all-half": {"rest": 1e6, "one": 1e6, "other": 1e6},
    "all-quarter": {"rest": 0.5e6, "one": 0.5e6, "other": 0.5e6},
    "half-half": {"rest": 1e6, "one": 1e6, "other": 0.5e6},
}
#: level of `storage` → ready profile and time scale (the flash drive at a speed that two cores sustain)
STORAGE = {"hard-disk": ("hdd-7200", 1.0), "flash": ("sata-ssd", 4.0)}
#: of TeraSort's disks: so slow that small writes take longer than the path to the disk server
TERASORT_DISK = ("sata-ssd", 16.0)
PROFILES = Path(__file__).resolve().parent / "profiles"
#: node → its limits in a setting; the nodes 1, 3 and 5 have the reducers
PLACES = {"n1": "rest", "n2": "one", "n3": "rest", "n4": "other", "n5": "other", "n6": "other"}
REDUCERS = ("n1", "n3", "n5")


def limit_bps(setting: str, node: str) -> float:
    """Limit of a node's reads, and of its writes."""
    return SETTINGS[setting][PLACES[node]]


def profiles() -> dict[str, dict[str, Any]]:
    """One profile `KIND-SETTING-PLACE` per kind of disk; KIND is a storage or `terasort`."""
    kinds = {
        storage: (SETTINGS, *profile_and_scale) for storage, profile_and_scale in STORAGE.items()
    }
    kinds["terasort"] = (TERASORT, *TERASORT_DISK)
    by_name = {}
    for storage, (settings, profile, time_scale) in kinds.items():
        plain = scaled(read_profile(profile, PROFILES), time_scale)
        for setting, places in settings.items():
            for place, bps in places.items():
                name = f"{storage}-{setting}-{place}"
                limits = {"read_bps": bps, "write_bps": bps}
                by_name[name] = {**plain, "name": name, "limits": limits}
    return by_name


def text_of(profile: dict[str, Any]) -> str:
    """Text of the profile's file."""
    return json.dumps(profile, indent=1) + "\n"


if __name__ == "__main__":
    for name, profile in profiles().items():
        (PROFILES / f"{name}.json").write_text(text_of(profile))
