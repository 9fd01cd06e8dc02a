# server.sh, to be sourced: PostgreSQL's programs as its own user, and a server that only a socket of ours reaches.
# `as PROGRAM …` runs as user postgres where we are root; `pg_start DIR [OPTIONS]` starts the cluster in DIR until
# the shell ends; `sql …` is psql on it. The working directory becomes one that user postgres may read.
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid postgres --regid postgres --init-groups "$@"; else "$@"; fi; }

sockets=$(mktemp -d)
trap 'rm -rf "$sockets"' EXIT
[ "$(id -u)" != 0 ] || chown postgres: "$sockets"
cd "$sockets"

# settings of a measured server: data several times its buffers, one process per query, nothing in the background
measured="-c shared_buffers=16MB -c max_parallel_workers_per_gather=0 -c synchronize_seqscans=off -c autovacuum=off \
  -c huge_pages=off -c checkpoint_timeout=1h"

pg_start() {
  cluster=$1
  trap pg_stop EXIT
  as "$bin/pg_ctl" -D "$cluster" -w -t 120 -l "$sockets/server.log" \
    -o "-c listen_addresses='' -k $sockets ${2:-$measured}" start >/dev/null
}
pg_stop() {
  as "$bin/pg_ctl" -D "$cluster" -m fast -w -t 120 stop >/dev/null 2>&1 || true
  rm -rf "$sockets"
}
pg_make() { # pg_make DIR: a fresh cluster there
  mkdir -p "$1"
  [ "$(id -u)" != 0 ] || chown postgres: "$1"
  chmod 700 "$1"
  as "$bin/initdb" -D "$1" -U postgres -A trust --no-sync >/dev/null
}
sql() { as "$bin/psql" -h "$sockets" -U postgres -X -q -A -t -v ON_ERROR_STOP=1 postgres "$@"; }
