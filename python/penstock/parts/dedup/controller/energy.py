"""Energy of deduplication: extra energy of hashing and of sending, and the break-even similarity.

Costa 2014, section 5.4.3: hashing takes (P_peak - P_idle) T_h on the client, sending (P_io - P_idle) T_io
on the client and on each storage node. Equation 5.9 as printed multiplies by T_io at its end where its
derivation divides; `break_even` is the derivation's form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import BadInput
from penstock.parts.dedup.record import WriteRecord

if TYPE_CHECKING:
    from penstock.platform.power import Power


@dataclass(frozen=True)
class PowerModel:
    """Power [W] of one machine that is idle, hashes, or sends and stores; machines that take part in sending.

    `hash_w` is the peak power from a data sheet, or the power measured while the store hashes. `senders` is
    one client and one storage node for each replica.
    """

    idle_w: float
    hash_w: float
    io_w: float
    senders: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w < min(self.hash_w, self.io_w):
            powers = f"idle {self.idle_w:g} W, hash {self.hash_w:g} W, io {self.io_w:g} W"
            raise BadInput(
                f"power: found {powers}; expected the power of an idle machine below both"
            )
        if self.senders < 1:
            raise BadInput(f"senders: found {self.senders}; expected at least 1 machine")

    @property
    def hash_extra_w(self) -> float:
        """Extra power while one machine hashes."""
        return self.hash_w - self.idle_w

    @property
    def io_extra_w(self) -> float:
        """Extra power of all machines while data are sent."""
        return self.senders * (self.io_w - self.idle_w)

    @property
    def ratio(self) -> float:
        """Break-even similarity of energy over that of time; at 1 they never conflict."""
        return self.hash_extra_w / self.io_extra_w

    def extra_j(self, hash_s: float, send_s: float) -> float:
        """Extra energy of a write: what it takes beyond idle machines."""
        return self.hash_extra_w * hash_s + self.io_extra_w * send_s

    def total_j(self, hash_s: float, send_s: float, duration_s: float) -> float:
        """Energy of all machines during a write."""
        return self.extra_j(hash_s, send_s) + self.senders * self.idle_w * duration_s


def energy_of(record: WriteRecord, power: PowerModel) -> float:
    """Energy [J] of a committed version beyond that of idle machines, from its times."""
    return power.extra_j(record.hash_s, record.send_s)


def power_model(power: Power, replicas: int = 1) -> PowerModel:
    """Powers of a host of a platform file: hashing takes its `app`, sending its `storage` and `network`."""
    peak_w = power.peak_w if power.peak_w is not None else math.inf
    return PowerModel(
        idle_w=power.idle_w,
        hash_w=min(power.idle_w + power.app_w, peak_w),
        io_w=min(power.idle_w + power.storage_w + power.network_w, peak_w),
        senders=1 + replicas,
    )


def break_even(power: PowerModel, r: float) -> float:
    """Similarity from which deduplication saves energy; `r` is the time to hash over the time to send."""
    return power.ratio * r


def relative_energy(power: PowerModel, r: float, z: float) -> float:
    """Extra energy of a write with deduplication over that of one without."""
    return break_even(power, r) + 1 - z


def wrong_decision(z_true: float, z_model: float) -> float:
    """Largest share of extra energy that a wrong break-even similarity costs.

    Between the two similarities the model selects the worse configuration; the loss is largest at `z_model`.
    It is infinite if deduplication takes no energy there.
    """
    if z_model < z_true:  # deduplication is selected from z_model on
        return z_true - z_model
    energy = 1 + z_true - z_model  # of deduplication at z_model, below which it is not selected
    return 1 / energy - 1 if energy > 0 else math.inf


@dataclass(frozen=True)
class Testbed:
    """Machines of Costa 2014, section 5.4, and the time of hashing over sending measured on them."""

    name: str
    power: PowerModel
    r: float
    #: power while the store hashes, which gives the measured break-even
    measured_hash_w: float

    @property
    def measured_power(self) -> PowerModel:
        """Powers with that measured while hashing in place of the peak."""
        return PowerModel(
            self.power.idle_w, self.measured_hash_w, self.power.io_w, self.power.senders
        )


#: idle and peak power as published; the power of I/O, which is not, follows from the published break-evens of
#: the model (21.4 and 18.1 %), that of hashing from the measured ones (18 and 10 %)
TESTBEDS = {
    "new": Testbed("new", PowerModel(86.0, 290.0, 276.7), 0.40, 257.6),
    "old": Testbed("old", PowerModel(188.0, 252.0, 216.3), 0.16, 223.4),
}
