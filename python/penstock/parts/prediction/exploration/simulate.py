"""The evaluator of an exploration: the queue-network simulator on all cores of this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.exploration.candidate_networks import Composer, Hosts
from penstock.parts.prediction.exploration.evaluate import DRAWN, Measure
from penstock.parts.prediction.exploration.space.space import HINTS, Candidate, Space
from penstock.parts.prediction.queue_network.cost import run_cost
from penstock.parts.prediction.queue_network.energy import run_energy
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.queue_network.uncertainty import sampled, uncertain_values
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.draws import of_draw
from penstock.platform.hosts import Platform
from penstock.profile.model import native


class Simulated:
    """Predicts candidates by simulation. `threads` 0 is all cores; results do not depend on it.

    `hinted` has the workload of each level of the hints, empty if they are not varied.
    Seeds up to `DRAWN` simulate the platform's own values; seed DRAWN + i the i-th platform sampled from its
    estimates and assumptions (as for a prediction's interval), with seed i.
    """

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        space: Space,
        threads: int = 0,
        hinted: Mapping[str, Workload] | None = None,
    ) -> None:
        self.workload, self.platform, self.space, self.threads = workload, platform, space, threads
        self._composer = Composer(platform, space)
        self._drawn: list[tuple[list[int], Composer]] = []
        self._hinted = dict(hinted or {})
        self._native = {name: _native(variant) for name, variant in self._hinted.items()}
        self._native[""] = _native(workload)
        self._meters: dict[int, _Meter] = {}
        prices = {p.currency for p in platform.price.values()}
        self._currency = min(prices) if prices else ""
        self._objectives = ("makespan_s", *(["cost"] if prices else []))
        if platform.power:
            self._objectives = (*self._objectives, "energy_j")

    @property
    def objectives(self) -> tuple[str, ...]:
        return self._objectives

    @property
    def currency(self) -> str:
        return self._currency

    def reason(self, candidate: Candidate) -> str | None:
        return self._composer.reason(candidate)

    def hosts(self, candidate: Candidate) -> int:
        hosts = self._composer.hosts(candidate)
        assert isinstance(hosts, Hosts)
        return hosts.count

    def evaluate(
        self, candidates: Sequence[Candidate], seeds: Sequence[int]
    ) -> list[list[Measure]]:
        parts = [([s for s in seeds if s <= DRAWN], self._composer, list[int]())]
        numbers = {s - DRAWN for s in seeds if s > DRAWN}
        for indices, composer in self._draws(max(numbers, default=0)):
            draws = [k for k, i in enumerate(indices) if i + 1 in numbers]
            parts.append(([DRAWN + indices[k] + 1 for k in draws], composer, draws))
        by_seed: list[dict[int, Measure]] = [{} for _ in candidates]
        for of_part, composer, draws in parts:
            rows = self._evaluate(composer, candidates, of_part, draws) if of_part else []
            for measures_by_seed, row in zip(by_seed, rows, strict=False):
                measures_by_seed.update(zip(of_part, row, strict=True))
        return [[measures_by_seed[s] for s in seeds] for measures_by_seed in by_seed]

    @property
    def uncertain(self) -> bool:
        return bool(uncertain_values(self.platform))

    def _draws(self, count: int) -> list[tuple[list[int], Composer]]:
        """Composers of the first `count` draws or more, with the indices of their draws."""
        if count > sum(len(rows) for rows, _ in self._drawn):
            draws = sampled(self.platform, count)
            self._drawn = [(rows, Composer(p, self.space, checked=True)) for rows, p in draws]
        return self._drawn

    def _evaluate(
        self,
        composer: Composer,
        candidates: Sequence[Candidate],
        seeds: Sequence[int],
        draws: Sequence[int],
    ) -> list[list[Measure]]:
        """Measures by candidate and seed; `draws` are the numbers of the composer's draws, one per seed."""
        own = [s - DRAWN if s > DRAWN else s for s in seeds]
        outcomes: list[list[str]] = [[] for _ in candidates]
        names = [self._hints(c) for c in candidates]
        for name in dict.fromkeys(names):
            chosen = [i for i, other in enumerate(names) if other == name]
            networks = [composer.network(candidates[i]) for i in chosen]
            columns = composer.columns.lists(draws)
            try:
                run = self._native[name].simulate_many
                of_name = run(networks, own, self.threads, columns)
            except ValueError as error:
                raise BadInput(f"the simulator refuses this: {error}") from None
            for i, texts in zip(chosen, of_name, strict=True):
                outcomes[i] = texts
        rows = []
        for candidate, texts in zip(candidates, outcomes, strict=True):
            hosts = composer.hosts(candidate)
            assert isinstance(hosts, Hosts)
            meter = self._meters.setdefault(id(hosts), _Meter(hosts))
            measured = zip(texts, draws or [0] * len(texts), strict=True)
            rows.append([meter.measure(json.loads(text), draw) for text, draw in measured])
        return rows

    def _hints(self, candidate: Candidate) -> str:
        """The level of the candidate's hints; empty if they are not varied."""
        return str(self.space.values(candidate).get(HINTS, "")) if self._hinted else ""

    def workload_of(self, candidate: Candidate) -> Workload:
        """The workload with the candidate's hints."""
        return self._hinted.get(self._hints(candidate), self.workload)

    def platform_values(self, candidate: Candidate) -> Mapping[str, Any]:
        """Platform values of the candidate by dotted path."""
        return self._composer.values(candidate)

    def judge(self, candidate: Candidate) -> dict[str, Any]:
        """See `Evaluator`: the candidate's full prediction."""
        platform = self.platform.with_values(self._composer.values(candidate))
        workload = self.workload_of(candidate)
        notes = list(workload.notes)
        try:
            prediction = predict(workload, platform, threads=self.threads)
        except PenstockError as error:  # a run on some seed cannot end: its store fills up
            return {"verdict": "outside", "reasons": [str(error)], "notes": notes}
        return {
            "notes": notes,
            "verdict": prediction.applies.verdict,
            "reasons": [r.text for r in prediction.applies.reasons if r.severity != "note"],
            "makespan_s": prediction.makespan_s,
            "interval": prediction.interval.to_dict(),
            "idle": None if prediction.idle is None else prediction.idle.to_dict(),
            "bottleneck": None if prediction.bottleneck is None else prediction.bottleneck.text,
        }


def _native(workload: Workload) -> Any:
    try:
        return native.NetworkWorkload(json.dumps(workload.to_dict()))
    except ValueError as error:
        raise BadInput(f"workload {workload.name}: {error}") from None


class _Meter:
    """Cost and energy of the outcomes of one set of hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self.of = hosts  # the reference prevents reuse of the id
        self.count = hosts.count
        self.prices = {h.name: h.price for h in hosts.hosts if h.price is not None}
        self.powers = {h.name: h.power for h in hosts.hosts if h.power is not None}

    def measure(self, outcome: Mapping[str, Any], draw: int) -> Measure:
        error = outcome.get("error")
        # an incomplete run has an infinite time
        makespan_s = math.inf if error else float(outcome["makespan_s"])
        cost = energy_j = None
        if self.prices:
            paid = None if error else run_cost(makespan_s, of_draw(self.prices, draw))
            cost = math.inf if paid is None else paid.amount
        if self.powers:
            energy_j = math.inf
            if not error:
                powers = of_draw(self.powers, draw)
                energy_j = run_energy(makespan_s, outcome["hosts"], powers).total_j
        stations = outcome["stations"]
        top = max(stations, key=lambda s: s["critical_s"] or 0.0) if stations else None
        return Measure(
            makespan_s,
            cost,
            energy_j,
            self.count,
            int(outcome["bytes"]["network"]),
            int(outcome["requests"]),
            int(outcome["events"]),
            "" if top is None else str(top["kind"]),
            str(error.get("message") or error.get("kind")) if error else "",
        )
