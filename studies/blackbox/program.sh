#!/usr/bin/env bash
# program.sh PROGRAM DIR RUN_DIR SPARK: runs PROGRAM once on the data of prepare.sh in DIR.
# RUN_DIR/task.json: when the task began and ended (CLOCK_REALTIME), its seconds, the bytes that it moved by its
# own account. What surrounds a task (starting a server) is not in its seconds.
#   grep-fixed   lines with a fixed string                    a few instructions per byte
#   grep-regex   lines with three letters twice in a row      backtracks: as slow as a disk, or slower
#   table-scan   PostgreSQL, all rows, no index
#   word-count   Spark, one core; the job, without the start of the session
set -euo pipefail
program=$1 dir=$2 out=$3 spark=${4:-}

task() { # task COMMAND…: runs and times it
  begin_ns=$(date +%s%N)
  "$@"
  end_ns=$(date +%s%N)
}
moved() { # moved JSON: writes task.json
  awk -v b="$begin_ns" -v e="$end_ns" -v m="$1" \
    'BEGIN { printf "{\"begin_ns\": %s, \"end_ns\": %s, \"seconds\": %.6f, \"moved\": %s}\n", b, e, (e - b) / 1e9, m }' \
    > "$out/task.json"
}
search() { "$@" "$dir/text" > "$out/count" || [ $? = 1 ]; } # 1: no such line

case $program in
  grep-fixed)
    LC_ALL=C task search grep -c -F foobarqux
    moved "{\"size\": $(stat -c %s "$dir/text")}"
    ;;
  grep-regex)
    LC_ALL=C.UTF-8 task search grep -c -E '([a-z]{3})\1'
    moved "{\"size\": $(stat -c %s "$dir/text")}"
    ;;
  table-scan)
    . "$(dirname "$0")/../../examples/postgres/server.sh"
    pg_start "$dir/pg"
    path=$(sql -c "select pg_relation_filepath('scanned')")
    task sql -c 'select count(*), sum(length(pad)) from scanned' > "$out/count"
    moved "{\"size\": $(stat -c %s "$dir/pg/$path")}"
    ;;
  word-count)
    export PYTHONDONTWRITEBYTECODE=1 SPARK_LOCAL_IP=127.0.0.1
    "$spark/bin/python" "$(dirname "$0")/word_count.py" "$dir" "$out" 2> "$out/spark.log" ||
      { tail -n 3 "$out/spark.log" >&2; exit 1; }
    ;;
  *)
    echo "found the program $program; expected grep-fixed, grep-regex, table-scan or word-count" >&2
    exit 2
    ;;
esac
