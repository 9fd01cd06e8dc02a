"""What a monitor sampled of a command, as points of its experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.observe.monitor.latency import bucket_of, labels_of_entity
from penstock.observe.monitor.points import Account, Batch, points


def sampled(tables: Mapping[str, pa.Table], expected: int, shift_ns: int) -> Sequence[Batch]:
    """What a monitor sampled of a command as two batches: `samples`, and `utilisation` computed from them.

    A metric is `SOURCE_METRIC`, or `KIND_METRIC`; what it is of is the label `entity`, up to
    where a bucket of block latency goes `le`. `expected`: samples
    that were due; `shift_ns`: the time of day less CLOCK_MONOTONIC.
    """
    found = []
    missed = max(0, expected - len(tables["samples"]["t_ns"].unique()))
    for source, first in (("samples", "source"), ("utilisation", "kind")):
        table = tables[source]
        table = table.filter(table["value"].is_valid())
        metric = pc.binary_join_element_wise(
            table[first].cast(pa.string()), table["metric"].cast(pa.string()), "_"
        )
        coded = table["entity"].cast(pa.string()).combine_chunks().dictionary_encode()
        entities = coded.dictionary.to_pylist()
        said = [labels_of_entity(e) for e in entities]
        # a bucket begins with the first request in it
        late = {text for text, e in zip(said, entities, strict=True) if bucket_of(e)}
        labels = pa.DictionaryArray.from_arrays(coded.indices, pa.array(said, pa.string()))
        columns = points(
            metric=metric,
            labels=labels,
            utc_ns=pc.add(table["t_ns"], shift_ns),
            float=table["value"],
            unit=table["unit"],
        )
        text = labels.cast(pa.string())
        counter = table["cumulative"] if source == "samples" else pa.repeat(False, len(text))
        rows = (
            pa.table({"metric": metric, "labels": text, "counter": counter})
            .group_by(["metric", "labels", "counter"])
            .aggregate([("metric", "count")])
            .to_pylist()
        )
        accounts = [
            Account(
                r["metric"],
                r["labels"],
                # of what begins late, or is computed, those that are there less what was not sampled
                expected=expected
                if source == "samples" and r["labels"] not in late
                else r["metric_count"] + missed,
                counter=r["counter"],
            )
            for r in rows
        ]
        found.append(Batch(source, 0, columns, accounts))
    return found
