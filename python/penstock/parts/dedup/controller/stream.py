"""Estimates of one stream: the writes of a family of files.

Per configuration: similarity, time to hash, overlap of hashing and sending. Per stream: time to send, and
other time, such as that of the commit and of the program that writes. Times to hash and send are per byte,
so that writes of different sizes, also smaller than a chunk, count alike. The numbers of a stream are in
one array of floats, since a store may have very many streams.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.parts.dedup.controller.estimate import Estimator
from penstock.parts.dedup.controller.send_time import SendTimes
from penstock.parts.dedup.controller.settings import OFF, Settings
from penstock.parts.dedup.controller.utility import Costs
from penstock.parts.dedup.record import WriteRecord

#: states of a stream
CALIBRATE, PROBE, STEADY_ON, STEADY_OFF = "calibrate", "probe", "steady on", "steady off"

# slots of a stream; then those of each configuration; then its estimates
_BYTES, _CHUNK_BYTES, _SEND_BEFORE, _SAMPLED, _SAMPLED_SIMILAR = range(5)
#: benefit of the current stay, and writes to stay in off or on (`patience`)
BENEFIT, WAIT_OFF, WAIT_ON = range(5, 8)
_OTHER, _STREAM = 8, 9
_HASH, _OVERLAP, _SHORTER, _CONFIGURATION = range(4)
#: least share of a write that must be sent for an estimate of the send time
_LEAST_SENT = 0.02
#: sampled chunks that count as one observation of similarity
_LEAST_SAMPLE = 20
#: weight of a write in means of times that change slowly
_RATE = 1 / 10


class Stream:
    """State of one stream.

    Indices of configurations, or -1: `incumbent` is the one of the last decision, `before` the one before it,
    `probed` the one of a probe, `previous` that of the latest write.
    """

    __slots__ = (
        *("before", "compared", "count", "incumbent", "interval", "numbers", "previous"),
        *("probed", "state", "writes"),
    )

    def __init__(self, size: int, interval: int) -> None:
        self.state = CALIBRATE
        self.before = self.incumbent = self.probed = self.previous = -1
        #: writes in the current state, and until the next probe
        self.count, self.interval = 0, interval
        self.writes = 0
        #: True if the previous version has hashes of its sampled chunks
        self.compared = False
        self.numbers: array[float] = array("d", bytes(8 * size))


class Estimates:
    """Learns from the records of streams, and predicts the costs of each configuration."""

    def __init__(self, settings: Settings, configurations: Sequence[str]) -> None:
        self.estimator = Estimator(settings.window, settings.adaptive, settings.memory)
        self.configurations = tuple(configurations)
        self.off = self.configurations.index(OFF) if OFF in self.configurations else None
        self.dedup = [i for i, name in enumerate(self.configurations) if name != OFF]
        #: the configuration that a shadow sample represents
        self.sampled = self.dedup[0] if self.dedup else -1
        n = len(self.configurations)
        self._tables = [_STREAM + _CONFIGURATION * i for i in range(n)]
        at = _STREAM + _CONFIGURATION * n
        self.sending = SendTimes(self.estimator, at, n, settings.window)
        at += self.sending.size
        # the one of off is never used
        places = {i: k for k, i in enumerate(self.dedup)}
        self.similarity = [at + self.estimator.size * places.get(i, 0) for i in range(n)]
        self.size = at + self.estimator.size * len(self.dedup)
        self._quantile = settings.quantile if settings.adaptive else 0.0
        self._power = settings.power

    def learn(self, stream: Stream, record: WriteRecord, index: int) -> bool:
        """Add a record of the configuration `index`; True if it has an observation of similarity."""
        numbers = stream.numbers
        size = record.bytes
        mean = numbers[_BYTES]
        numbers[_BYTES] = mean + _RATE * (size - mean) if mean else float(size)
        is_off = index == self.off
        sent = size if is_off else size - record.similar_bytes
        sending = record.send_s or (max(0.0, record.duration_s - record.hash_s) if is_off else 0.0)
        if sent >= _LEAST_SENT * size and sending > 0:
            self.sending.add(numbers, index, sending / sent, stream.previous != index)
        else:
            self.sending.miss(numbers)
        self._learn_times(stream, record, index, sending)
        if is_off:
            observed = self._learn_sample(stream, record)
        else:
            stream.compared = index == self.sampled
            if stream.compared and record.chunks > 0:
                numbers[_CHUNK_BYTES] = size / record.chunks
            # a predecessor with chunks of another configuration, or without any, has nothing similar
            observed = stream.previous == index
            if observed:
                at = self.similarity[index]
                self.estimator.add(numbers, at, record.similar_bytes / size)
        stream.previous = index
        stream.writes += 1
        return observed

    def _learn_times(self, stream: Stream, record: WriteRecord, index: int, sending: float) -> None:
        numbers, at = stream.numbers, self._tables[index]
        hashing = record.hash_s
        # positive: hashing and sending overlap; negative: other time
        slack = hashing + sending - record.duration_s
        rate = _RATE if stream.writes else 1.0
        numbers[_OTHER] += rate * (max(-slack, 0.0) - numbers[_OTHER])
        if index == self.off or hashing <= 0:
            return
        before = numbers[at + _HASH]
        rate = _RATE if before else 1.0
        numbers[at + _HASH] = before + rate * (hashing / record.bytes - before)
        numbers[at + _SHORTER] += rate * (min(hashing, sending) - numbers[at + _SHORTER])
        numbers[at + _OVERLAP] += rate * (max(slack, 0.0) - numbers[at + _OVERLAP])

    def _learn_sample(self, stream: Stream, record: WriteRecord) -> bool:
        """Add the sample of a write without deduplication, if it has one."""
        if record.hash_s <= 0 or record.chunks <= 0:
            stream.compared = False
            return False
        observed, stream.compared = stream.compared, True
        if not observed:
            return False
        numbers = stream.numbers
        chunks = numbers[_SAMPLED] + record.chunks
        similar = numbers[_SAMPLED_SIMILAR] + record.similar_chunks
        if chunks < _LEAST_SAMPLE:
            numbers[_SAMPLED], numbers[_SAMPLED_SIMILAR] = chunks, similar
            return False
        numbers[_SAMPLED] = numbers[_SAMPLED_SIMILAR] = 0.0
        # Laplace's estimate, which is not 0 for a sample without differences
        z = (similar + 1) / (chunks + 2)
        variance = z * (1 - z) / chunks
        self.estimator.add(numbers, self.similarity[self.sampled], similar / chunks, variance)
        return True

    def forget(self, stream: Stream, index: int) -> None:
        """Discard the observations of a configuration's similarity."""
        if index != self.off:
            self.estimator.forget(stream.numbers, self.similarity[index])

    def observations(self, stream: Stream, index: int) -> int:
        """Observations of a configuration's similarity in the window."""
        return self.estimator.count(stream.numbers, self.similarity[index])

    def similarity_of(self, stream: Stream, index: int) -> float | None:
        """Estimated similarity of a configuration, None if unknown."""
        if index == self.off or not self.observations(stream, index):
            return None
        return self.estimator.mean(stream.numbers, self.similarity[index])

    def send_s(self, stream: Stream, index: int) -> float | None:
        """Seconds to send a byte in a configuration, None if unknown."""
        return self.sending.of(stream.numbers, index) if self.sent(stream) else None

    def mark(self, stream: Stream) -> None:
        """Store the send time as that of the last decision."""
        stream.numbers[_SEND_BEFORE] = self.send_s(stream, max(0, stream.incumbent)) or 0.0

    def drift(self, stream: Stream) -> float:
        """Relative change of the send time since `mark`."""
        before, now = stream.numbers[_SEND_BEFORE], self.send_s(stream, max(0, stream.incumbent))
        return abs(now / before - 1) if before and now is not None else 0.0

    def sent(self, stream: Stream) -> bool:
        """True if there is an estimate of the time to send."""
        return self.sending.has_estimate(stream.numbers)

    def unmeasured_off(
        self, stream: Stream, costs: Sequence[Costs | None], share: float
    ) -> list[Costs | None]:
        """Costs if sending without deduplication, which was never measured, takes `share` of the estimate.

        Empty if it was measured, or if it is no configuration.
        """
        if self.off is None or self.sending.measured(stream.numbers, self.off):
            return []
        off = costs[self.off]
        if off is None:
            return []
        shifted = list(costs)
        shifted[self.off] = (share * off[0], off[1], share * off[2])
        return shifted

    def hash_s(self, stream: Stream, index: int) -> float | None:
        """Seconds to hash a byte, None if unknown."""
        return stream.numbers[self._tables[index] + _HASH] or None

    def overlap(self, stream: Stream, index: int) -> float:
        """Share of the shorter of hashing and sending that overlaps with the longer one."""
        numbers, at = stream.numbers, self._tables[index]
        if numbers[at + _SHORTER] <= 0:
            return 0.0
        return min(1.0, numbers[at + _OVERLAP] / numbers[at + _SHORTER])

    def sample_share(self, stream: Stream, time_share: float, most: float) -> float:
        """Share of chunks for one observation of similarity, in at most `time_share` of a write."""
        numbers = stream.numbers
        hashing, size = numbers[self._tables[self.sampled] + _HASH], numbers[_BYTES]
        if not hashing or not size or self.off is None or not self.sent(stream):
            return 0.0
        sending = self.sending.of(numbers, self.off)
        # half a chunk more, as the store rounds down
        enough = (_LEAST_SAMPLE + 0.5) * numbers[_CHUNK_BYTES] / size
        return min(most, enough, time_share * sending / hashing)

    def costs(self, stream: Stream) -> list[Costs | None]:
        """Costs of a mean write in each configuration; None where its similarity is unknown."""
        if not self.sent(stream):
            return [None] * len(self.configurations)
        numbers, count, mean = stream.numbers, self.estimator.count, self.estimator.mean
        send = self.sending.shared(numbers)
        return [
            self._cost(stream, i, send, mean(numbers, at) if count(numbers, at) else None)
            for i, at in enumerate(self.similarity)
        ]

    def pair(self, stream: Stream, index: int, z: float) -> tuple[Costs, Costs] | None:
        """Costs without deduplication, and with it in a configuration for a similarity; None if unknown."""
        if self.off is None or not self.sent(stream):
            return None
        send = self.sending.shared(stream.numbers)
        off, on = self._cost(stream, self.off, send, None), self._cost(stream, index, send, z)
        return None if off is None or on is None else (off, on)

    def unfavourable(
        self, stream: Stream, costs: Sequence[Costs | None], index: int, incumbent: int
    ) -> list[Costs | None]:
        """Costs with a similarity and send time that favour `incumbent`, within their intervals."""
        numbers, q = stream.numbers, self._quantile
        send, error = self.sending.shared(numbers), self.sending.error(numbers)
        bounds = {
            index: self._bound(stream, index, -q),
            incumbent: self._bound(stream, incumbent, q),
        }
        # the one that sends more gains from a shorter time to send
        more = costs[index], costs[incumbent]
        grows = more[0] is not None and more[1] is not None and more[0][1] > more[1][1]
        send = max(0.0, send + q * error * (1 if grows else -1))
        shifted = list(costs)
        for i, z in bounds.items():
            shifted[i] = self._cost(stream, i, send, z)
        return shifted

    def bounded(
        self, stream: Stream, costs: Sequence[Costs | None], index: int, sign: int
    ) -> list[Costs | None]:
        """Costs with the similarity of `index` at the lower (-1) or upper (1) end of its interval."""
        send = self.sending.shared(stream.numbers)
        shifted = list(costs)
        shifted[index] = self._cost(
            stream, index, send, self._bound(stream, index, sign * self._quantile)
        )
        return shifted

    def _bound(self, stream: Stream, index: int, errors: float) -> float | None:
        if index == self.off or not self.observations(stream, index):
            return None
        numbers, at = stream.numbers, self.similarity[index]
        mean = self.estimator.mean(numbers, at)
        return min(1.0, max(0.0, mean + errors * self.estimator.standard_error(numbers, at)))

    def _cost(self, stream: Stream, index: int, send: float, z: float | None) -> Costs | None:
        """Costs if the shared estimate of the send time is `send`."""
        numbers, at = stream.numbers, self._tables[index]
        size = numbers[_BYTES]
        if index == self.off:
            hashing, space = 0.0, size
        elif z is None:
            return None
        else:
            hashing, space = numbers[at + _HASH] * size, size * (1 - z)
        sending = send * self.sending.factor(numbers, index) * space
        time = hashing + sending + numbers[_OTHER]
        if numbers[at + _OVERLAP] > 0:
            time -= self.overlap(stream, index) * min(hashing, sending)
        power = self._power
        return time, space, 0.0 if power is None else power.extra_j(hashing, sending)
