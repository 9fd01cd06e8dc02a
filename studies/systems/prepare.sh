#!/usr/bin/env bash
# prepare.sh SYSTEM DIR SIZE: what the system finds on its disk before it is measured, SIZE MiB of it.
set -euo pipefail
system=$1 dir=$2 size=$3
here=$(cd "$(dirname "$0")" && pwd)
case $system in
  postgres)
    . "$here/../../examples/postgres/server.sh"
    pg_make "$dir/pg"
    pg_start "$dir/pg" "-c fsync=off"
    as "$bin/pgbench" -h "$sockets" -U postgres -i -q -s "$(((size + 14) / 15))" postgres >&2
    sql -c 'vacuum freeze analyze' -c checkpoint
    ;;
  rocksdb) mkdir "$dir/db" ;;
  hdfs)
    . "$here/hdfs.sh"
    mkdir "$dir/name" "$dir/blocks"
    hdfs_configure "$dir"
    hdfs_format
    head -c "${size}M" /dev/urandom > "$dir/file"
    ;;
esac
