"""Runs on other hosts: one Dask worker on each, everything over TLS, each block of a study on one host.

| file | what |
|---|---|
| `tls.py` | certificates of one campaign |
| `worker.py` | the process on a host |
| `remote.py` | what it is asked to do |
| `conduct.py` | who makes which run, and what becomes of it |
"""
