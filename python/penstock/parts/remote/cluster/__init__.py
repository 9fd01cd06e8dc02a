"""One virtual cluster on several physical hosts: its plan, and its nodes.

| file | content |
|---|---|
| `physical.py` | physical hosts and the paths between them, in numbers |
| `own_facts.py` | the facts of this host |
| `hosts_file.py` | the hosts file, and the facts of each host |
| `measure.py` | measurement of hosts and of the paths between them |
| `path_probe.py` | the same on one host |
| `verify.py` | checks of the hosts before anything is changed |
| `demand.py` | demands of the nodes, supplies of the hosts |
| `placement.py` | the host of each node |
| `packing.py` | vector bin packing |
| `traffic.py` | traffic between hosts |
| `overcommitment.py` | demands above what hosts sustain |
| `network_plan.py` | tunnels, addresses, routes |
| `impairments.py` | delay and loss in addition to those of the real paths |
| `plan.py` | the complete plan of a platform |
| `report.py` | the plan as tables and as JSON |
| `host_specs.py` | the part of a plan that each host starts |
| `coordinator.py` | start, status, change and stop of the nodes on all hosts |
| `agent.py` | the same on one host |
| `records.py` | records of the clusters that were started from here |
"""
