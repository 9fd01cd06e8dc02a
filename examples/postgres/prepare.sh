#!/usr/bin/env bash
# prepare.sh DIR SCALE ROWS: a fresh PostgreSQL cluster in DIR/pg with pgbench's tables (scale SCALE)
# and a table `scanned` of ROWS rows of about 1 KiB that only the cold scan reads.
set -euo pipefail
dir=$1 scale=$2 rows=$3
. "$(dirname "$0")/server.sh"
pg_make "$dir/pg"
pg_start "$dir/pg" "-c fsync=off -c max_wal_size=64MB -c min_wal_size=32MB"
as "$bin/pgbench" -h "$sockets" -U postgres -i -q -s "$scale" postgres >/dev/null 2>&1
sql -c "create table scanned as select i as id, repeat(md5(i::text), 30) as pad from generate_series(1, $rows) i"
sql -c 'alter table scanned set (autovacuum_enabled = off)' -c 'vacuum freeze analyze' -c checkpoint
