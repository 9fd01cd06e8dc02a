"""The real Prometheus, and Carbon's relay, send to our receivers: all that they sent is accounted for."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.parts.monitoring.collectors.http_push import RemoteWriteReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.recorded import recorded, refusals
from penstock.parts.monitoring.experiments.spool import Spool
from tests.integration.test_collectors import answers, program, running
from tests.support.ports import free_port
from tests.unit.test_collectors import until

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
#: a quantile of nothing, an infinity, and a series that ends after some scrapes
TEXT = '# TYPE d summary\nd{quantile="0.5"} NaN\nd_count 0\n# TYPE g gauge\ng 1\ni +Inf\n'


class Exporter(http.server.BaseHTTPRequestHandler):
    shown = 0

    def do_GET(self) -> None:
        type(self).shown += 1
        passing = "passing 1\n" if 2 < self.shown <= 6 else ""
        body = (TEXT + passing).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def sent_by(port: int) -> dict[str, float]:
    """What Prometheus counts of its remote write."""
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
    """Breaks where a NaN, a staleness marker or a series that begins late makes series partial, and where
    what Prometheus counts as sent is not what we count as received."""
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
        words = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 't'}"]
        words += [f"--web.listen-address=127.0.0.1:{port}"]
        with running(words, tmp_path / "log"):
            until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 120)
            until(lambda: receiver.intake.receipt.stored > 0, 120)
            start_ns = time.time_ns()
            until(lambda: Exporter.shown >= 22, 240)
            end_ns = time.time_ns() - 3 * 10**9  # what it holds back is sent meanwhile
            time.sleep(1.0)
            counted = sent_by(port)
        exporter.shutdown()
        exporter.server_close()
    receipt = receiver.intake.receipt
    assert counted.get("samples_failed_total", 0) == 0
    assert receipt.received >= counted["samples_total"]
    assert set(receipt.refused) <= {"not finite", "stale"}, receipt.errors
    assert receipt.refused["stale"] >= 1
    assert not receipt.refused_messages
    made = recorded(spool.batches(), start_ns, end_ns)
    rows = made.series.to_pylist()
    for row in rows:
        parts = ("stored", "outside", "without_value", "duplicate")
        assert sum(row[k] for k in parts) == row["received"], row
    assert sum(r["received"] for r in rows) == receipt.received
    told = {(r["metric"], r["labels"]): r for r in rows}
    assert {one.verdict for one in refusals(made).values()} <= {"complete"}
    bad = [r for r in rows if r["verdict"] not in ("complete", "unknown")]
    assert not bad, json.dumps(bad[:3], indent=1)
    (nothing,) = (r for (m, ls), r in told.items() if m == "d" and "quantile" in ls)
    assert nothing["stored"] == 0 < nothing["without_value"]
    (passing,) = (r for (m, _), r in told.items() if m == "passing")
    assert passing["lost"] == 0
