"""Rows of this part in the tables of `penstock.plugins`, and its verbs."""

from __future__ import annotations

ROWS = {
    "commands": {"monitor": "penstock.parts.monitoring.cli.monitor"},
    "http-routes": {"experiments": "penstock.parts.monitoring.http.experiments:add_routes"},
    "functions": {
        "adopt-experiments": "penstock.parts.monitoring.experiments.experiments:adopt_experiments",
        "export-series": "penstock.parts.monitoring.queries.export_directory:write",
        "import-experiment": "penstock.parts.monitoring.experiments.import_series:import_experiment",
        "remote-write": "penstock.parts.monitoring.queries.remote_write:open_server",
    },
    "run-names": {
        "experiments": "penstock.parts.monitoring.experiments.selection:select_experiments"
    },
    "api": {
        name: f"penstock.parts.monitoring.api:{name}"
        for name in ("Recording", "experiment", "series")
    },
    "checks": {
        name: f"penstock.parts.monitoring.testing:{name}"
        for name in (
            *("Ledger", "MemorySink", "Sent"),
            *("check_collector", "check_metric_server", "check_receiver"),
        )
    },
    "observers": {"collect": "penstock.parts.monitoring.collect:CollectObserver"},
    "collectors": {
        "scrape": "penstock.parts.monitoring.collectors.scrape:Scraper",
        "graphite": "penstock.parts.monitoring.collectors.graphite:GraphiteReceiver",
        "influxdb": "penstock.parts.monitoring.collectors.http_push:InfluxReceiver",
        "remote-write": "penstock.parts.monitoring.collectors.http_push:RemoteWriteReceiver",
        "snmp": "penstock.parts.monitoring.collectors.snmp:SnmpPoller",
        "swift": "penstock.parts.monitoring.collectors.products.swift:SwiftPoller",
        "cassandra": "penstock.parts.monitoring.collectors.products.cassandra:CassandraPoller",
        "ceph": "penstock.parts.monitoring.collectors.products.ceph:CephPoller",
        "power": "penstock.parts.monitoring.collectors.meters:PowerMeters",
        "block-latency": "penstock.parts.monitoring.collectors.block_latency:BlockLatency",
    },
    "metric-servers": {
        "prometheus": "penstock.parts.monitoring.servers.prometheus:PrometheusReader",
        "victoriametrics": "penstock.parts.monitoring.servers.prometheus:PrometheusReader",
        "influxdb": "penstock.parts.monitoring.servers.influxdb:InfluxReader",
        "graphite": "penstock.parts.monitoring.servers.graphite:GraphiteReader",
    },
}
VERBS = {
    "Watch a program": {
        "monitor": "Record experiments: metrics, phases, the resources that a program uses."
    }
}
