"""Rows of this part in the tables of `penstock.plugins`, and its verbs."""

from __future__ import annotations

ROWS = {
    "commands": {
        "store": "penstock.parts.stores.cli.store",
        "workflow": "penstock.parts.stores.cli.workflow",
        "seed": "penstock.parts.stores.cli.seed",
    },
    "checks": {
        "check_store": "penstock.parts.stores.testing:check_store",
        "check_store_engine": "penstock.parts.stores.testing:check_store_engine",
        "check_store_hint": "penstock.parts.stores.testing:check_store_hint",
    },
    "functions": {
        "measure-configuration": "penstock.parts.stores.workflow.confirm:measure",
        "workflow-aware": "penstock.parts.stores.workflow.confirm:workflow_aware",
    },
    "cluster-services": {"store": "penstock.parts.stores.store:Store"},
    "store-engines": {
        "moosefs": "penstock.parts.stores.engines.moosefs:MooseFS",
        "glusterfs": "penstock.parts.stores.engines.glusterfs:GlusterFS",
        "hdfs": "penstock.parts.stores.engines.hdfs:HDFS",
        "cephfs": "penstock.parts.stores.engines.cephfs:CephFS",
        "directory": "penstock.parts.stores.engines.directory:Directory",
    },
    "store-hints": {
        "Replication": "penstock.parts.stores.hints:REPLICATION",
        "ChunkSize": "penstock.parts.stores.hints:CHUNK_SIZE",
        "StripeWidth": "penstock.parts.stores.hints:STRIPE_WIDTH",
        "CacheSize": "penstock.parts.stores.hints:CACHE_SIZE",
        "deduplication": "penstock.parts.stores.hints:DEDUPLICATION",
        "DP": "penstock.parts.stores.hints:PLACEMENT",
    },
}
VERBS = {
    "Emulate storage and clusters": {
        "store": "Start a real shared store on virtual nodes: MooseFS and others.",
    },
    "Predict and choose": {
        "workflow": "Run a workflow on virtual nodes with a shared store.",
        "seed": "Measure the service times of a real store for predictions.",
    },
}
