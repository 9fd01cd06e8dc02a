"""What a monitor sampled of a command, as points of its experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.observe.monitor.entities import PROCESS, labels_of_entity
from penstock.observe.monitor.latency import bucket_of
from penstock.observe.monitor.points import MOST_POINTS, Account, Batch, points

#: sources of numbers that may be lacking: there is an `up` for each time that they were asked for
_ASKED = ("file", "command")
#: by source, what is not told in each sample
_NOW_AND_THEN = ("process_", "command_", "sampler_source_")


def sampled(tables: Mapping[str, pa.Table], expected: int, shift_ns: int) -> Sequence[Batch]:
    """What a monitor sampled of a command as batches of two sources: `samples`, and `utilisation` computed
    from them.

    A metric is `SOURCE_METRIC`, or `KIND_METRIC`; what it is of are labels, as `labels_of_entity` has them.
    `expected`: samples that were due; `shift_ns`: the time of day less CLOCK_MONOTONIC.
    """
    found = []
    missed = max(0, expected - len(tables["samples"]["t_ns"].unique()))
    for source, kind in (("samples", "source"), ("utilisation", "kind")):
        table = tables[source]
        table = table.filter(table["value"].is_valid())
        metric = pc.binary_join_element_wise(
            table[kind].cast(pa.string()), table["metric"].cast(pa.string()), "_"
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
        text = labels.cast(pa.string())
        counter = table["cumulative"] if source == "samples" else pa.repeat(False, len(text))
        rows = (
            pa.table({"metric": metric, "labels": text, "counter": counter})
            .group_by(["metric", "labels", "counter"])
            .aggregate([("metric", "count")])
            .to_pylist()
        )
        asked = _asked(table) if source == "samples" else {}
        # a bucket begins with the first request in it, and processes come and go
        begins_late = {text for text, e in zip(said, entities, strict=True) if bucket_of(e)}
        passing = {text for text, e in zip(said, entities, strict=True) if PROCESS.fullmatch(e)}
        accounts = []
        for r in rows:
            name, there = (r["metric"], r["labels"]), r["metric_count"]
            if name in asked:
                due = asked[name]
            elif name[1] in passing or name[0].startswith(_NOW_AND_THEN):
                due = there
            elif source == "samples" and name[1] not in begins_late:
                due = expected
            else:  # those that are there, less what was not sampled
                due = there + missed
            accounts.append(Account(*name, expected=due, counter=r["counter"]))
        starts = range(0, max(1, len(columns)), MOST_POINTS)
        for number, first in enumerate(starts):
            part = columns.slice(first, MOST_POINTS)
            found.append(Batch(source, number, part, accounts if number + 1 == len(starts) else ()))
    return found


def _asked(table: pa.Table) -> dict[tuple[str, str], int]:
    """Of the value of each file and command how many there would be, from its first one to its last."""
    found = {}
    for source in _ASKED:
        mine = table.filter(pc.equal(table["source"], source))
        frame = mine.select(["t_ns", "entity", "metric"]).to_pandas()
        for entity, rows in frame.groupby("entity", observed=True):
            there = rows.loc[rows["metric"] == "value", "t_ns"]
            asked = rows.loc[rows["metric"] == "up", "t_ns"]
            if len(there):
                due = int(asked.between(there.min(), there.max()).sum())
                found[f"{source}_value", labels_of_entity(str(entity))] = due
    return found
