"""Use of hosts, disks and networks, and the dashboards that show it."""
