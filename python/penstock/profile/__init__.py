"""Storage profiles: models of devices. Built-in ones, files, time scales, and the limits of a host."""

from penstock.profile.honour import (
    HostLimits,
    check_honourable,
    nearest_honest_time_scale,
    too_fast_when_loaded,
)
from penstock.profile.likeness import likeness
from penstock.profile.load import load_profile, ready_names
from penstock.profile.model import Moments, StorageProfile, scaled

__all__ = [
    "HostLimits",
    "Moments",
    "StorageProfile",
    "check_honourable",
    "likeness",
    "load_profile",
    "nearest_honest_time_scale",
    "ready_names",
    "scaled",
    "too_fast_when_loaded",
]
