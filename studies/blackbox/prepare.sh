#!/usr/bin/env bash
# prepare.sh PROGRAM DIR MIB SPARK: what PROGRAM reads, MIB large, in DIR: a table of PostgreSQL, or lines of words;
# for word-count also Spark itself, in SPARK.
set -euo pipefail
program=$1 dir=$2 mib=$3
here=$(cd "$(dirname "$0")" && pwd)
if [ "$program" = table-scan ]; then
  # rows of about 1 KiB; eight of them make a page of 8 KiB
  exec "$here/../../examples/postgres/prepare.sh" "$dir" 1 $((mib * 1048576 / 1024))
fi
python3 "$here/text.py" "$dir/text" $((mib * 1048576))
if [ "$program" = word-count ]; then
  "$here/spark.sh" "$4" python3
fi
