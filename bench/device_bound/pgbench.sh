#!/usr/bin/env bash
# pgbench.sh DIR TRANSACTIONS RATE: starts the cluster in DIR/pg and runs so many select-only transactions of one
# client, RATE per second (0: as fast as they go). stdout: pgbench's report.
set -euo pipefail
. "$(dirname "$0")/../../examples/postgres/server.sh"
pg_start "$1/pg"
limit=()
[ "$3" = 0 ] || limit=(-R "$3")
as "$bin/pgbench" -h "$sockets" -U postgres -n -S -c 1 -t "$2" "${limit[@]}" --random-seed=1 postgres
