"""REST resources under /api/v1: emulated clusters, nodes, disks, links, schedules, jobs."""
