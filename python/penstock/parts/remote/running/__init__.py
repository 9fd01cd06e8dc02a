"""A cluster on several hosts that is up, as other parts use it.

| file | content |
|---|---|
| `nodes.py` | its nodes, entered from here |
| `nodes_here.py` | description of the nodes of one host |
| `tracing.py` | one trace of nodes on several hosts |
| `trace_here.py` | the trace of the nodes of one host |
"""
