#!/usr/bin/env bash
# step.sh SYSTEM STEP DIR RUN_DIR PROGRAMS: one step on the data of prepare.sh, with what it takes by its own clock.
#   scan-loaded      all records in key order, from the table as it was loaded
#   rewrite          that table written again in key order
#   scan-rewritten   all records in key order, from a table that was written in that order
# stdout: `seconds: …`, `records: …`, `bytes: …`, `checksum: …`; RUN_DIR/table: the file that the step reads.
set -euo pipefail
system=$1 step=$2 dir=$3 out=$4 programs=$5
table=${step#scan-}
[ "$step" != rewrite ] || table=loaded

case $system in
  wiredtiger)
    echo "wt/$table.wt" > "$out/table"
    if [ "$step" = rewrite ]; then
      "$programs/records" rewrite "$dir/wt" loaded again
    else
      "$programs/records" scan "$dir/wt" "$table"
    fi
    ;;
  postgres)
    . "$(dirname "$0")/../../examples/postgres/server.sh"
    pg_start "$dir/pg" "$measured -c shared_buffers=4MB"
    echo "pg/$(sql -c "select pg_relation_filepath('$table')")" > "$out/table"
    begin=$(date +%s.%N)
    if [ "$step" = rewrite ]; then
      sql -c 'cluster loaded using loaded_key' -c checkpoint
    else
      found=$(sql -F ' ' -c 'set enable_seqscan = off' -c 'set enable_bitmapscan = off' -c 'set enable_sort = off' \
        -c "select count(*), sum(length(value)), md5(string_agg(key || md5(value), ' '))
              from (select key, value from $table order by key) as ordered")
    fi
    end=$(date +%s.%N)
    awk -v b="$begin" -v e="$end" 'BEGIN { printf "seconds: %.6f\n", e - b }'
    if [ "$step" != rewrite ]; then
      read -r records bytes checksum <<< "$found"
      printf 'records: %s\nbytes: %s\nchecksum: %s\n' "$records" "$bytes" "$checksum"
    fi
    ;;
esac
