"""word_count.py DIR RUN_DIR: count the words of DIR/text with Spark, on one core, with shuffle and result in
DIR.

Write RUN_DIR/task.json: start and end of the job in a running session, and the bytes that its map and reduce
tasks read and wrote, by Spark's event log.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def bytes_moved(log: Path) -> dict[str, int]:
    """Bytes read and written by the tasks of an event log, with the names of `penstock learn --predict
    mapreduce`: `map_in` from files, `map_out` to the shuffle, `reduce_in` from it, `reduce_out` to files.
    """
    moved = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 0)
    for line in log.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        metrics = event.get("Task Metrics") if event["Event"] == "SparkListenerTaskEnd" else None
        if metrics:
            shuffled = metrics["Shuffle Read Metrics"]
            moved["map_in"] += metrics["Input Metrics"]["Bytes Read"]
            moved["map_out"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            moved["reduce_in"] += shuffled["Remote Bytes Read"] + shuffled["Local Bytes Read"]
            moved["reduce_out"] += metrics["Output Metrics"]["Bytes Written"]
    return moved


def main() -> None:
    """The command line."""
    data, run_dir = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    events = run_dir / "events"
    events.mkdir()
    session = (
        SparkSession.builder.master("local[1]")
        .appName("word count")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(data / "shuffle"))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .getOrCreate()
    )
    begin_ns = time.time_ns()
    lines = session.read.text(str(data / "text"))
    words = lines.selectExpr("explode(split(value, ' ')) as word")
    words.groupBy("word").count().write.csv((data / "counts").as_uri())
    end_ns = time.time_ns()
    session.stop()
    (log,) = (p for p in events.iterdir() if p.is_file() and not p.name.startswith("."))
    task = {"begin_ns": begin_ns, "end_ns": end_ns, "seconds": (end_ns - begin_ns) / 1e9}
    (run_dir / "task.json").write_text(json.dumps({**task, "moved": bytes_moved(log)}))


if __name__ == "__main__":
    main()
