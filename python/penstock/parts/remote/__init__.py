"""Runs on other hosts, and plans of clusters on several hosts.

Runs: one Dask worker per host, TLS for all connections, one host for each block of a study.

| file | content |
|---|---|
| `tls.py` | certificates of one campaign |
| `worker.py` | the worker process of a host |
| `assignment.py` | the tasks of a worker, one run each |
| `conductor.py` | assignment of runs to hosts, and their results |
| `cluster/` | one virtual cluster on several hosts: plan, start, stop |
| `running/` | the nodes of such a cluster, as other parts use them |
"""
