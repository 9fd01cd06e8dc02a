#!/usr/bin/env bash
# prepare.sh DIR SCALE ROWS: a fresh PostgreSQL cluster in DIR/pg with pgbench's tables (scale SCALE)
# and a table `scanned` of ROWS rows of about 1 KiB that only the cold scan reads.
set -euo pipefail
dir=$1 scale=$2 rows=$3
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid postgres --regid postgres --init-groups "$@"; else "$@"; fi; }

sockets=$(mktemp -d)
[ "$(id -u)" != 0 ] || chown postgres: "$sockets"
mkdir -p "$dir/pg"
[ "$(id -u)" != 0 ] || chown postgres: "$dir/pg"
chmod 700 "$dir/pg"
cd "$dir/pg"
as "$bin/initdb" -D "$dir/pg" -U postgres -A trust --no-sync >/dev/null
stop() { as "$bin/pg_ctl" -D "$dir/pg" -m fast -w stop >/dev/null 2>&1 || true; rm -rf "$sockets"; }
trap stop EXIT
as "$bin/pg_ctl" -D "$dir/pg" -w -l "$dir/pg/prepare.log" \
  -o "-c listen_addresses='' -k $sockets -c fsync=off -c max_wal_size=64MB -c min_wal_size=32MB" start >/dev/null
sql() { as "$bin/psql" -h "$sockets" -U postgres -X -q -v ON_ERROR_STOP=1 postgres "$@"; }
as "$bin/pgbench" -h "$sockets" -U postgres -i -q -s "$scale" postgres >/dev/null 2>&1
sql -c "create table scanned as select i as id, repeat(md5(i::text), 30) as pad from generate_series(1, $rows) i"
sql -c 'alter table scanned set (autovacuum_enabled = off)' -c 'vacuum freeze analyze' -c checkpoint
