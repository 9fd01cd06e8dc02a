#!/usr/bin/env bash
# measure.sh DIR OUT SECONDS CLIENTS: starts the cluster in DIR/pg, scans the table `scanned` once, cold, reads
# pgbench's accounts and their index once (they stay in memory as far as it goes), runs pgbench for SECONDS with
# CLIENTS clients, and stops the server.
# stdout: pgbench's own report, then `scan_seconds: …` and `scan_rate_mib: …`.
# OUT/claims.json: the bytes PostgreSQL itself says it read of the scanned table's file.
set -euo pipefail
dir=$1 out=$2 seconds=$3 clients=$4
. "$(dirname "$0")/server.sh"
pg_start "$dir/pg"

blocks_read() {
  sql -c "select coalesce(heap_blks_read, 0) from pg_statio_user_tables where relname = 'scanned'"
}
before=$(blocks_read)
begin=$(date +%s.%N)
sql -c 'select count(*), sum(length(pad)) from scanned' >/dev/null
end=$(date +%s.%N)
path=$(sql -c "select pg_relation_filepath('scanned')")
# the statistics collector reports within a second of the scan's end
for _ in $(seq 50); do
  blocks=$(($(blocks_read) - before))
  [ "$blocks" -gt 0 ] && break
  sleep 0.1
done
bytes=$((blocks * 8192))
printf '[{"file": "pg/%s", "direction": "read", "bytes": %s, "by": "pg_statio_user_tables.heap_blks_read"}]\n' \
  "$path" "$bytes" > "$out/claims.json"

sql -c 'select sum(abalance) from pgbench_accounts' >/dev/null
sql -c 'set enable_seqscan = off' -c 'set enable_bitmapscan = off' -c 'select count(aid) from pgbench_accounts' >/dev/null
as "$bin/pgbench" -h "$sockets" -U postgres -c "$clients" -j 1 -T "$seconds" -n postgres
awk -v b="$begin" -v e="$end" -v n="$bytes" \
  'BEGIN { printf "scan_seconds: %.6f\nscan_rate_mib: %.6f\n", e - b, n / 1048576 / (e - b) }'
