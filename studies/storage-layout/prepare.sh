#!/usr/bin/env bash
# prepare.sh SYSTEM DIR COUNT SHUFFLED PROGRAMS: COUNT records of 1 to 6 kB under random 64-bit keys in DIR, twice:
# table `loaded` as they came (SHUFFLED percent of them out of key order), table `rewritten` in key order.
#   wiredtiger   through records.c, compiled in PROGRAMS
#   postgres     always 100 percent shuffled; `rewritten` is what CLUSTER makes of it
set -euo pipefail
system=$1 dir=$2 count=$3 shuffled=$4 programs=$5
here=$(cd "$(dirname "$0")" && pwd)
case $system in
  wiredtiger)
    "$here/build.sh" "$programs"
    mkdir -p "$dir/wt"
    "$programs/records" load "$dir/wt" "$count" "$shuffled"
    "$programs/records" rewrite "$dir/wt" loaded rewritten
    ;;
  postgres)
    if ! ls -d /usr/lib/postgresql/*/bin >/dev/null 2>&1; then
      echo "storage-layout: PostgreSQL is missing: apt-get install postgresql" >&2
      exit 1
    fi
    . "$here/../../examples/postgres/server.sh"
    pg_make "$dir/pg"
    pg_start "$dir/pg" "-c fsync=off"
    # rows stay in their page: neither compressed nor moved to another table
    for table in loaded rewritten; do
      sql -c "create table $table (key bigint not null, value text not null)" \
        -c "alter table $table alter value set storage plain, set (autovacuum_enabled = off)" \
        -c "insert into $table select hashint8extended(i, 1), left(repeat(md5(i::text), 192),
              1024 + ((hashint8extended(i, 2) & 1073741823) % 5121)::int) from generate_series(1, $count) i" \
        -c "create index ${table}_key on $table (key)"
    done
    sql -c 'cluster rewritten using rewritten_key'
    sql -c 'vacuum freeze analyze' -c checkpoint
    ;;
esac
