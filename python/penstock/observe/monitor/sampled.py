"""What a monitor sampled of a command, as batches of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.observe.monitor.entities import PROCESS, labels_of_entity
from penstock.observe.monitor.latency import bucket_of
from penstock.observe.monitor.points import Account, Batch, points

#: sources of numbers that may be lacking: there is an `up` for each time that they were asked for
_ASKED = ("file", "command")
#: by source or metric, what is not told in each sample
_NOW_AND_THEN = ("process_", "command_", "sampler_source_")


def sampled(tables: Mapping[str, pa.Table], expected: int, shift_ns: int) -> Sequence[Batch]:
    """What a monitor sampled of a command as two batches: `samples`, and `utilisation` computed from them.

    A metric is `SOURCE_METRIC`, or `KIND_METRIC`; what it is of are labels, as `labels_of_entity` has them.
    `expected`: samples that were due; `shift_ns`: the time of day less CLOCK_MONOTONIC.
    """
    found = []
    for source, first in (("samples", "source"), ("utilisation", "kind")):
        table = tables[source]
        table = table.filter(table["value"].is_valid())
        metric = pc.binary_join_element_wise(
            table[first].cast(pa.string()), table["metric"].cast(pa.string()), "_"
        )
        coded = table["entity"].cast(pa.string()).combine_chunks().dictionary_encode()
        entities = coded.dictionary.to_pylist()
        said = [labels_of_entity(e) for e in entities]
        labels = pa.DictionaryArray.from_arrays(coded.indices, pa.array(said, pa.string()))
        columns = points(
            metric=metric,
            labels=labels,
            utc_ns=pc.add(table["t_ns"], shift_ns),
            float=table["value"],
            unit=table["unit"],
        )
        accounts = []
        if source == "samples":
            # a bucket begins with the first request in it, and processes come and go
            late = {
                text
                for text, e in zip(said, entities, strict=True)
                if bucket_of(e) or PROCESS.fullmatch(e)
            }
            accounts = _accounts(metric, labels, late, expected) + _asked(table)
        found.append(Batch(source, 0, columns, accounts))
    return found


def _accounts(
    metric: pa.ChunkedArray, labels: pa.DictionaryArray, late: set[str], expected: int
) -> list[Account]:
    pairs = pa.table({"metric": metric, "labels": labels.cast(pa.string())})
    return [
        Account(r["metric"], r["labels"], expected=expected)
        for r in pairs.group_by(["metric", "labels"]).aggregate([]).to_pylist()
        if r["labels"] not in late
        and not r["metric"].startswith(_NOW_AND_THEN)
        and r["metric"] != "file_value"
    ]


def _asked(table: pa.Table) -> list[Account]:
    """Of each file and command how many values there would be, from its first one to its last."""
    accounts = []
    for source in _ASKED:
        mine = table.filter(pc.equal(table["source"], source))
        frame = mine.select(["t_ns", "entity", "metric"]).to_pandas()
        for entity, rows in frame.groupby("entity", observed=True):
            there = rows.loc[rows["metric"] == "value", "t_ns"]
            asked = rows.loc[rows["metric"] == "up", "t_ns"]
            if len(there):
                due = int(asked.between(there.min(), there.max()).sum())
                labels = labels_of_entity(str(entity))
                accounts.append(Account(f"{source}_value", labels, expected=due))
    return accounts
