"""Load the data and run WordCount, DFSIO and five queries with Spark, each as a separate application.

    programs.py TOP ENDPOINT KEY SECRET JARS HOME INPUT OUT FILES MIB

Runs in Spark's own Python on the head; TOP is the file system (hdfs://… or s3a://…). OUT gets the event logs
of the applications in `events`, and `programs.json`: start and end of each (CLOCK_MONOTONIC), and a checksum
of its output. stdout has `NAME: SECONDS` for each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SHUFFLES = 8
#: no second-tier compiler and one thread for garbage collection: short programs on few processors
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
TABLES = ("date_dim", "item", "store", "store_sales")
#: the content of five queries of TPC-DS (3, 42, 52, 55 and 89), on fewer tables of this study
QUERIES = {
    "q3": """
        SELECT d_year, i_brand_id, i_brand, sum(ss_ext_sales_price) AS total
        FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
        WHERE i_manufact_id < 10 AND d_moy = 11
        GROUP BY d_year, i_brand_id, i_brand ORDER BY d_year, total DESC, i_brand_id LIMIT 100""",
    "q42": """
        SELECT d_year, i_category_id, i_category, sum(ss_ext_sales_price) AS total
        FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
        WHERE i_manager_id = 1 AND d_year >= 2000
        GROUP BY d_year, i_category_id, i_category ORDER BY total DESC, d_year, i_category_id LIMIT 100""",
    "q52": """
        SELECT d_year, i_brand_id, i_brand, sum(ss_ext_sales_price) AS total
        FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
        WHERE i_manager_id = 2 AND d_moy IN (11, 12)
        GROUP BY d_year, i_brand_id, i_brand ORDER BY d_year, total DESC, i_brand_id LIMIT 100""",
    "q55": """
        SELECT i_brand_id, i_brand, sum(ss_ext_sales_price) AS total, sum(ss_net_profit) AS profit
        FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
        WHERE i_manager_id BETWEEN 3 AND 8 AND d_year = 1999
        GROUP BY i_brand_id, i_brand ORDER BY total DESC, i_brand_id LIMIT 100""",
    "q89": """
        SELECT * FROM (
            SELECT i_category, i_class, s_store_name, d_moy, sum(ss_sales_price) AS month,
                   avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_class, s_store_name) AS mean
            FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
                 JOIN store ON ss_store_sk = s_store_sk
            WHERE d_year = 2000 AND ss_quantity > 20
            GROUP BY i_category, i_class, s_store_name, d_moy)
        WHERE abs(month - mean) > 0.1 * mean
        ORDER BY month - mean, s_store_name, d_moy, i_category, i_class LIMIT 100""",
}


class Programs:
    """The programs of one run."""

    workers = 2

    def __init__(self, arguments: list[str]) -> None:
        self.top, self.endpoint, self.key, self.secret, self.jars, self.home = arguments[:6]
        self.input_directory, self.out = Path(arguments[6]), Path(arguments[7])
        self.files, self.mib = int(arguments[8]), int(arguments[9])
        (self.out / "events").mkdir()
        self.report: dict[str, Any] = {}

    def session(self, name: str, **more: str) -> SparkSession:
        """A separate application."""
        settings = {
            "spark.master": "spark://head:7077",
            "spark.driver.host": "head",
            "spark.driver.memory": "512m",
            "spark.driver.extraClassPath": f"{self.jars}/*",
            "spark.executor.extraClassPath": f"{self.jars}/*",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": JAVA,
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self.out / "events").as_uri(),
            "spark.local.dir": f"{self.home}/shuffle",
            "spark.sql.warehouse.dir": f"{self.home}/warehouse",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": str(SHUFFLES),
            # one task per file
            "spark.sql.files.maxPartitionBytes": "64m",
            "spark.sql.files.openCostInBytes": "64m",
            "spark.locality.wait": "1s",
            "spark.cores.max": "4",
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.access.key": self.key,
            "spark.hadoop.fs.s3a.secret.key": self.secret,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            # in an object store, renaming results at the end of a task and its job is a copy and a removal
            "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
            **more,
        }
        builder = SparkSession.builder.appName(name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def load(self) -> None:
        """Copy the input, by a local application without tasks."""
        session = self.session(
            "load", **{"spark.master": "local[1]", "spark.eventLog.enabled": "false"}
        )
        java = session.sparkContext._jvm.org.apache.hadoop
        conf = session.sparkContext._jsc.hadoopConfiguration()
        top = java.fs.Path(f"{self.top}/")
        if self.top.startswith("s3a:"):
            self._bucket(session)
        files = top.getFileSystem(conf)
        for name in ("texts", *TABLES):
            files.copyFromLocalFile(
                False,
                True,
                java.fs.Path((self.input_directory / name).as_uri()),
                java.fs.Path(top, name),
            )
        session.stop()

    def _bucket(self, session: SparkSession) -> None:
        amazon = session.sparkContext._jvm.com.amazonaws
        credentials = amazon.auth.AWSStaticCredentialsProvider(
            amazon.auth.BasicAWSCredentials(self.key, self.secret)
        )
        builders = session.sparkContext._jvm.com.amazonaws.client.builder.AwsClientBuilder
        client = (
            amazon.services.s3.AmazonS3ClientBuilder.standard()
            .withCredentials(credentials)
            .withEndpointConfiguration(builders.EndpointConfiguration(self.endpoint, "us-east-1"))
            .withPathStyleAccessEnabled(True)
            .build()
        )
        client.createBucket(self.top.removeprefix("s3a://"))

    def timed(self, name: str, act: Callable[[SparkSession], Any]) -> None:
        """One application; its time is that of its event log, from its start to its end."""
        session = self.session(name)
        self._wait(session)
        began_ns = time.monotonic_ns()
        outcome = act(session)
        ended_ns = time.monotonic_ns()
        log = session.sparkContext.applicationId
        session.stop()
        self.report[name] = {
            "began_ns": began_ns,
            "ended_ns": ended_ns,
            "log": log,
            "made": outcome,
        }
        print(f"{name}: {(ended_ns - began_ns) / 1e9:.6f}", flush=True)

    def _wait(self, session: SparkSession) -> None:
        """Wait until the executors of all workers are up: waves then use all slots, and no Java starts."""
        scala = session.sparkContext._jsc.sc()
        until = time.monotonic() + 120
        while scala.getExecutorMemoryStatus().size() < 1 + self.workers:
            if time.monotonic() > until:
                raise SystemExit(f"programs: not all {self.workers} executors came within 120 s")
            time.sleep(0.1)

    def wordcount(self, session: SparkSession) -> Any:
        """Count words; the counts are written as text."""
        words = session.read.text(f"{self.top}/texts").selectExpr(
            "explode(split(value, ' ')) AS word"
        )
        words.groupBy("word").count().write.csv(f"{self.top}/counts")
        return None

    def dfsio(self, session: SparkSession) -> Any:
        """Write N files of a size in MiB, one in each task."""
        lines = f"explode(sequence(1, {self.mib * 1024})) AS line"
        rows = session.range(0, self.files, 1, self.files).selectExpr("id", lines)
        text = (
            "substr(concat(lpad(id, 8, '0'), lpad(line, 8, '0'), repeat('penstock', 126)), 1, 1023)"
        )
        rows.selectExpr(f"{text} AS value").write.text(f"{self.top}/written")
        return None

    def queries(self, session: SparkSession) -> Any:
        """Five queries; nothing is cached between them, so each reads its tables again."""
        for table in TABLES:
            session.read.parquet(f"{self.top}/{table}").createOrReplaceTempView(table)
        results = {}
        for name, text in QUERIES.items():
            began = time.monotonic_ns()
            frame: DataFrame = session.sql(text)
            rows = frame.collect()
            results[name] = {"rows": len(rows), "seconds": (time.monotonic_ns() - began) / 1e9}
            results[name]["sum"] = f"{sum(float(r[-1]) for r in rows):.9g}"
        return results

    def checked(self) -> None:
        """Check the written data: the counted words, and bytes of DFSIO's files."""
        session = self.session(
            "check", **{"spark.master": "local[1]", "spark.eventLog.enabled": "false"}
        )
        counts = session.read.csv(f"{self.top}/counts").selectExpr("sum(cast(_c1 AS bigint))")
        self.report["wordcount"]["made"] = int(counts.first()[0])
        java = session.sparkContext._jvm.org.apache.hadoop
        place = java.fs.Path(f"{self.top}/written")
        files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
        sizes = [s.getLen() for s in files.listStatus(place) if s.getLen()]
        self.report["dfsio"]["made"] = {"files": len(sizes), "bytes": sum(sizes)}
        session.stop()
        expected = self.files, self.files * self.mib << 20
        if (len(sizes), sum(sizes)) != expected:
            raise SystemExit(
                f"programs: DFSIO left {len(sizes)} files, {sum(sizes)} B, of {expected}"
            )


def main() -> None:
    """Run the command line."""
    programs = Programs(sys.argv[1:])
    programs.load()
    programs.timed("wordcount", programs.wordcount)
    programs.timed("dfsio", programs.dfsio)
    programs.timed("tpcds", programs.queries)
    programs.checked()
    (programs.out / "programs.json").write_text(json.dumps(programs.report, indent=1))


if __name__ == "__main__":
    main()
