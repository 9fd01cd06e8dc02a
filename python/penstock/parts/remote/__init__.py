"""Runs on other hosts: one Dask worker on each, everything over TLS, each block of a study on one host.

| file | what |
|---|---|
| `tls.py` | certificates of one campaign |
| `worker.py` | the process on a host |
| `assignment.py` | its tasks: one run each |
| `conductor.py` | the runs of each host, and what becomes of them |
"""
