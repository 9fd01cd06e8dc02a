"""Online controller: chooses the configuration of the next version of a file from records of earlier ones.

Costa 2014, section 5.3, for any number of configurations. States of a stream:

    calibrate   first version: time to hash and to send; it has no predecessor, so no similarity
    probe       a window of writes with each deduplicating configuration; then decide
    steady on   decide after each write; probe the other deduplicating configurations at intervals
    steady off  decide after each sample; probe at intervals, which double while `off` is confirmed

To decide is to predict the costs of each configuration from the estimates, and to take the one with the
largest utility. It replaces the current one if it is better by `least_gain`, also at the unfavourable end
of the intervals of the estimates. docs/adr/0093-online-deduplication.md compares this with the published
loop.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence

from penstock.errors import BadInput
from penstock.parts.dedup.controller.decision import Decision, DecisionLog
from penstock.parts.dedup.controller.patience import Patience
from penstock.parts.dedup.controller.settings import OFF, SYSTEM, Settings
from penstock.parts.dedup.controller.stream import (
    CALIBRATE,
    PROBE,
    STEADY_OFF,
    STEADY_ON,
    Estimates,
    Stream,
)
from penstock.parts.dedup.controller.utility import Costs
from penstock.parts.dedup.record import WriteRecord
from penstock.terminal import say

#: streams of a controller; the one that was written least recently is forgotten beyond them
_MOST_STREAMS = 100_000
#: factor of the interval of probes while samples show the similarity; a probe then only shows what a sample
#: cannot, as chunks that moved
_SAMPLED = 4


class OnlineController:
    """Controller of all streams of a store. Its methods can be called from several threads.

    Call `choose` for the configuration of a new version, and `record` when the version is committed. Between
    the two, other versions of the same family may start: a record counts for the configuration that it names.
    """

    def __init__(self, settings: Settings, configurations: Sequence[str]) -> None:
        """Raises BadInput unless `configurations` are different names."""
        if not configurations or len(set(configurations)) != len(configurations):
            names = ", ".join(configurations) or "none"
            raise BadInput(f"configurations: found {names}; expected different names, such as off")
        if settings.utility.limits and OFF not in configurations:
            raise BadInput(
                "subject_to: found no configuration off; expected off, which is compared"
            )
        self.settings = settings
        self.estimates = Estimates(settings, configurations)
        self._index = {name: i for i, name in enumerate(configurations)}
        self._first = self.estimates.dedup[0] if self.estimates.dedup else 0
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        self._decisions: deque[Decision] = deque(maxlen=settings.decisions)
        self._adaptive = settings.adaptive
        # the first configuration to probe beside an incumbent
        self._others = [
            next((i for i in self.estimates.dedup if i != incumbent), -1)
            for incumbent in range(len(configurations))
        ]
        self._patience = Patience(settings, self.estimates)
        self._file = None if settings.log is None else DecisionLog(settings.log)
        self._lock = threading.Lock()

    def choose(self, family: str) -> str:
        """Configuration of the next version of a file of `family`."""
        stream = self._streams.get(self._key(family))
        return self.estimates.configurations[self._first if stream is None else _current(stream)]

    def sample_share(self, family: str) -> float:
        """Share (0…1) of chunks to hash and compare if the next version is written without deduplication."""
        sampling = self.settings.sampling
        stream = self._streams.get(self._key(family))
        if sampling is None or stream is None or not self.estimates.dedup:
            return 0.0
        return self.estimates.sample_share(stream, sampling.time_share, sampling.share)

    def record(self, record: WriteRecord) -> None:
        """Learn from a committed version, and decide. Raises BadInput for an unknown configuration."""
        index = self._index.get(record.configuration)
        if index is None:
            names = ", ".join(self._index)
            raise BadInput(f"configuration: found {record.configuration}; expected one of {names}")
        if record.bytes <= 0:
            return
        with self._lock:
            stream = self._stream(self._key(record.family))
            # time stamps of a store may be those of versions that overlap: order is the order of commits
            observed = self.estimates.learn(stream, record, index)
            if stream.state in (CALIBRATE, PROBE):
                self._probe(stream, record, index)
                return
            stream.count += 1
            self._patience.observe(stream, record, index, observed)
            if observed and self._patience.ready(stream) and self._decide(stream, record):
                return
            self._wait(stream, record)

    def decisions(self) -> list[Decision]:
        """Changes of state so far, oldest first; the latest `settings.decisions` at most."""
        with self._lock:
            return list(self._decisions)

    def state(self, family: str) -> str:
        """State of a family, for displays."""
        stream = self._streams.get(self._key(family))
        return CALIBRATE if stream is None else stream.state

    def stream(self, family: str) -> Stream | None:
        """State and estimates of a family; None before its first record."""
        return self._streams.get(self._key(family))

    def _key(self, family: str) -> str:
        return "" if self.settings.scope == SYSTEM else family

    def _stream(self, key: str) -> Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(self.estimates.size, self.settings.reprobe_after)
            stream.probed = self._first
            if len(self._streams) > _MOST_STREAMS:
                self._streams.popitem(last=False)
        elif len(self._streams) > 1:
            self._streams.move_to_end(key)
        return stream

    def _probe(self, stream: Stream, record: WriteRecord, index: int) -> None:
        if stream.state == CALIBRATE:
            if not self.estimates.dedup:
                self._enter(stream, record, 0, "the only configuration")
                return
            self._log(stream, record, PROBE, "first version")
            stream.state, stream.count = PROBE, 0
        if index != stream.probed:
            return
        stream.count += 1
        if index == self.estimates.off:
            self._decide(stream, record, "time without deduplication")
            return
        if stream.count < self.settings.window and not self._conclusive(stream):
            return
        following = self._next_probe(stream)
        if following is not None:
            self._start_probe(stream, record, following, "next configuration")
            return
        self._decide(stream, record, "end of probe")

    def _conclusive(self, stream: Stream) -> bool:
        """True if both ends of the probed similarity's interval lead to the same choice."""
        estimates, probed = self.estimates, stream.probed
        # a first probe is complete: it also measures the noise
        if (
            not self.settings.adaptive
            or stream.incumbent < 0
            or stream.count < 3
            or estimates.observations(stream, probed) < 2
        ):
            return False
        costs = estimates.costs(stream)
        choices = {self._best(estimates.bounded(stream, costs, probed, sign)) for sign in (-1, 1)}
        return len(choices) == 1

    def _next_probe(self, stream: Stream) -> int | None:
        """The next configuration to probe, None at the end of the round."""
        later = [i for i in self.estimates.dedup if i > stream.probed]
        if stream.state == PROBE and stream.incumbent in self.estimates.dedup:
            later = [i for i in later if i != stream.incumbent]
        return later[0] if later else None

    def _start_probe(self, stream: Stream, record: WriteRecord, index: int, reason: str) -> None:
        self._log(stream, record, PROBE, reason, self.estimates.configurations[index])
        stream.state, stream.probed, stream.count = PROBE, index, 0
        self.estimates.forget(stream, index)

    def _wait(self, stream: Stream, record: WriteRecord) -> None:
        """Start a probe in a steady state if one is due."""
        if stream.state == STEADY_ON and self._adaptive and self._off_is_open(stream):
            off = self.estimates.off
            assert off is not None
            self._start_probe(stream, record, off, "never written without deduplication")
            return
        other = self._others[stream.incumbent]
        if other < 0:
            return
        if stream.state == STEADY_OFF and self._adaptive and self._follow_drift(stream):
            self._start_probe(stream, record, other, "send time changed")
        elif stream.count >= stream.interval * (1 if self._unsampled(stream) else _SAMPLED):
            self._start_probe(stream, record, other, "interval")

    def _off_is_open(self, stream: Stream) -> bool:
        """True if a write without deduplication, never measured, may take so little that it is better.

        At the first interval that is tried at 1/10 of the estimate; after a window at half of it, so that an
        attempt costs little.
        """
        if stream.count != self.settings.window and stream.count != stream.interval:
            return False
        share = 0.5 if stream.count < stream.interval else 0.1
        costs = self.estimates.costs(stream)
        costs = self.estimates.unmeasured_off(stream, costs, share)
        return bool(costs) and self._best(costs) == self.estimates.off

    def _unsampled(self, stream: Stream) -> bool:
        """True if samples do not show the similarity of every configuration to probe."""
        return stream.state == STEADY_ON or not stream.compared or len(self.estimates.dedup) > 1

    def _best(self, costs: Sequence[Costs | None]) -> int:
        return self.settings.utility.best(costs, self.estimates.off)

    def _decide(self, stream: Stream, record: WriteRecord, reason: str = "new estimates") -> bool:
        """Take the best configuration; True if the state changed."""
        estimates, utility = self.estimates, self.settings.utility
        costs = estimates.costs(stream)
        incumbent = stream.incumbent
        if estimates.sent(stream):
            best = utility.best(costs, estimates.off)
        else:  # every chunk is similar
            best = incumbent if incumbent >= 0 else self._first
        if best != incumbent and incumbent >= 0 and costs[incumbent] is not None:
            shifted = estimates.unfavourable(stream, costs, best, incumbent)
            values = utility.values(shifted, estimates.off)
            if not values[best] > values[incumbent] + self.settings.least_gain * utility.scale:
                best = incumbent
        if stream.state != PROBE and best == incumbent:
            return False
        self._enter(stream, record, best, reason, costs)
        return True

    def _follow_drift(self, stream: Stream) -> bool:
        """Shorten the interval if the send time drifted; True if deduplication is now better.

        That is by its last similarity, if there is no sample of it.
        """
        estimates = self.estimates
        if estimates.drift(stream) <= self.settings.drift:
            return False
        stream.interval = self.settings.reprobe_after
        estimates.mark(stream)
        return not stream.compared and self._best(estimates.costs(stream)) != estimates.off

    def _enter(
        self,
        stream: Stream,
        record: WriteRecord,
        best: int,
        reason: str,
        costs: Sequence[Costs | None] = (),
    ) -> None:
        settings = self.settings
        confirmed = best == stream.incumbent
        if confirmed and settings.doubling:
            stream.interval = min(2 * stream.interval, settings.reprobe_most)
        elif not confirmed:
            stream.interval = settings.reprobe_after
            if stream.incumbent >= 0:
                self._patience.leave(stream, best)
        state = STEADY_OFF if best == self.estimates.off else STEADY_ON
        name = self.estimates.configurations[best]
        self._log(stream, record, state, reason, name, costs)
        stream.state, stream.incumbent, stream.probed, stream.count = state, best, -1, 0
        self.estimates.mark(stream)

    def _log(
        self,
        stream: Stream,
        record: WriteRecord,
        after: str,
        reason: str,
        configuration: str | None = None,
        costs: Sequence[Costs | None] = (),
    ) -> None:
        estimates = self.estimates
        names = estimates.configurations
        values = self.settings.utility.values(costs or [None] * len(names), estimates.off)
        steady_only = stream.interval if after in (STEADY_OFF, STEADY_ON) else 0
        decision = Decision(
            at_s=record.at_s,
            family=record.family,
            write=stream.writes,
            before=stream.state,
            after=after,
            configuration=configuration or record.configuration,
            reason=reason,
            configurations=names,
            similarity=tuple(estimates.similarity_of(stream, i) for i in range(len(names))),
            utility=tuple(value if math.isfinite(value) else None for value in values),
            send_s_per_byte=tuple(estimates.send_s(stream, i) for i in range(len(names))),
            hash_s_per_byte=tuple(estimates.hash_s(stream, i) for i in range(len(names))),
            next_probe=steady_only,
        )
        self._decisions.append(decision)
        if self._file is not None:
            try:
                self._file.add((decision,))
            except BadInput as error:  # a full file system must not stop the store
                self._file = None
                say(f"{error}; no further decisions are logged")


def _current(stream: Stream) -> int:
    return stream.probed if stream.state in (CALIBRATE, PROBE) else stream.incumbent
