"""A real Prometheus sends to the remote-write receiver; every sample is accounted for."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.parts.monitoring.collectors.http_push import RemoteWriteReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.recorded import recorded, refusals
from penstock.parts.monitoring.experiments.spool import Spool
from tests.integration.test_collectors import answers, program, running
from tests.support.ports import free_port
from tests.support.waiting import until

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: self
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
  - job_name: ex
    static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]
remote_write:
  - url: http://127.0.0.1:{receiver}/api/v1/write
    send_exemplars: true
    send_native_histograms: true
    queue_config: {{batch_send_deadline: 200ms, min_backoff: 30ms}}
"""
#: a quantile without observations, an infinity, and a series that ends after some scrapes
TEXT = '# TYPE d summary\nd{quantile="0.5"} NaN\nd_count 0\n# TYPE g gauge\ng 1\ni +Inf\n'


class Exporter(http.server.BaseHTTPRequestHandler):
    scrapes = 0
    #: times of the scrapes [s]
    times: ClassVar[list[float]] = []

    def do_GET(self) -> None:
        type(self).scrapes += 1
        self.times.append(time.monotonic())
        passing = "passing 1\n" if 2 < self.scrapes <= 6 else ""
        body = (TEXT + passing).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def sent_by(port: int) -> dict[str, float]:
    """Counters of the remote write of Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    named = ("samples_total", "samples_failed_total", "samples_pending", "samples_dropped_total")
    return {
        name: float(line.rpartition(" ")[2])
        for name in named
        for line in lines
        if line.startswith(f"prometheus_remote_storage_{name}{{")
    }


@pytest.mark.long
def test_an_experiment_with_a_real_prometheus_is_complete(tmp_path: Path) -> None:
    """A NaN, a staleness marker or a late start does not make a series partial.

    The receiver counts at least as many samples as Prometheus.
    """
    prometheus = program("prometheus", "prometheus")
    exporter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    spool = Spool.create(tmp_path / "spool")
    receiver = RemoteWriteReceiver("rw", {"port": 0})
    with Collecting({"rw": receiver}, spool.hold("rw")):
        port = free_port()
        config = tmp_path / "p.yml"
        ports = {"port": port, "exporter": exporter.server_address[1]}
        config.write_text(CONFIG.format(receiver=receiver.address[1], **ports))
        argv = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 't'}"]
        argv += [f"--web.listen-address=127.0.0.1:{port}"]
        with running(argv, tmp_path / "log"):
            until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 120)
            until(lambda: receiver.intake.receipt.stored > 0, 120)
            start_ns = time.time_ns()
            until(lambda: Exporter.scrapes >= 22, 240)
            end_ns = time.time_ns() - 3 * 10**9  # margin for samples that Prometheus holds back
            time.sleep(1.0)
            sent = sent_by(port)
        exporter.shutdown()
        exporter.server_close()
    receipt = receiver.intake.receipt
    assert sent.get("samples_failed_total", 0) == 0
    assert receipt.received >= sent["samples_total"]
    assert set(receipt.refused) <= {"not finite", "stale"}, receipt.errors
    assert receipt.refused["stale"] >= 1
    assert not receipt.refused_messages
    recording = recorded(spool.batches(), start_ns, end_ns)
    rows = recording.series.to_pylist()
    for row in rows:
        parts = ("stored", "outside", "without_value", "duplicate")
        assert sum(row[k] for k in parts) == row["received"], row
    assert sum(r["received"] for r in rows) == receipt.received
    by_series = {(r["metric"], r["labels"]): r for r in rows}
    assert {refusal.verdict for refusal in refusals(recording).values()} <= {"complete"}
    # scrapes that a paused Prometheus did not make
    missed = int(np.maximum(np.round(np.diff(Exporter.times)) - 1, 0).sum())
    bad = [r for r in rows if r["verdict"] not in ("complete", "unknown")]
    bad = [r for r in bad if (r["lost"] or 0) > missed or not missed]
    assert not bad, json.dumps(bad[:3], indent=1)
    (quantile,) = (r for (m, ls), r in by_series.items() if m == "d" and "quantile" in ls)
    assert quantile["stored"] == 0 < quantile["without_value"]
    (passing,) = (r for (m, _), r in by_series.items() if m == "passing")
    assert passing["lost"] <= missed
