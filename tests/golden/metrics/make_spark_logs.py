"""Write small Spark event logs: `python make_spark_logs.py OUT VARIANT` (pyspark 3.5).

Two executors of two cores on this host; a job of 9 tasks and a shuffle of 3, one stage whose tasks fail once.
"""

import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

out = Path(sys.argv[1]).resolve()
variant = sys.argv[2]
settings = {
    "plain": {},
    "lz4": {"spark.eventLog.compress": "true", "spark.eventLog.compression.codec": "lz4"},
    "zstd": {"spark.eventLog.compress": "true", "spark.eventLog.compression.codec": "zstd"},
    "snappy": {"spark.eventLog.compress": "true", "spark.eventLog.compression.codec": "snappy"},
    "rolled": {
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": "10m",
    },
}[variant]
out.mkdir(parents=True, exist_ok=True)
builder = SparkSession.builder.master("local-cluster[2,2,900]").appName(f"penstock-{variant}")
builder = builder.config("spark.eventLog.enabled", "true").config(
    "spark.eventLog.dir", out.as_uri()
)
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "800m").config("spark.task.maxFailures", "3")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
context = spark.sparkContext


def work(number: int) -> tuple[int, int]:
    import time

    time.sleep(0.05 if number != 5 else 0.3)  # one straggler
    return number % 3, number


def fails_once(number: int) -> int:
    if number == 1 and TaskContext.get().attemptNumber() == 0:
        raise ValueError("planned to fail")
    return number


context.parallelize(range(9), 9).map(work).reduceByKey(lambda a, b: a + b, 3).collect()
context.parallelize(range(4), 4).map(fails_once).collect()
spark.stop()
