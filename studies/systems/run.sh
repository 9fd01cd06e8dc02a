#!/usr/bin/env bash
# run.sh SYSTEM DIR SIZE: the system as it is packaged, with its own load on DIR; SIZE as for prepare.sh.
#   postgres   all accounts read cold, then pgbench: transactions that wait for their log
#   rocksdb    db_bench with direct I/O: SIZE MiB filled in random order, then read at random
#   hdfs       a file put (blocks synced), the blocks dropped from the page cache, the file read again and compared
# stdout: `seconds: …` of the load, without starting and stopping.
set -euo pipefail
system=$1 dir=$2 size=$3
here=$(cd "$(dirname "$0")" && pwd)
now() { date +%s.%N; }
case $system in
  postgres)
    . "$here/../../examples/postgres/server.sh"
    pg_start "$dir/pg"
    begin=$(now)
    sql -c 'select count(*), sum(abalance) from pgbench_accounts'
    as "$bin/pgbench" -h "$sockets" -U postgres -n -c 4 -t 100 postgres
    end=$(now)
    ;;
  rocksdb)
    begin=$(now)
    db_bench --db="$dir/db" --benchmarks=fillrandom,waitforcompaction,stats,readrandom --num=$((size * 2048)) --reads=2000 \
      --value_size=496 --compression_type=none --use_direct_reads --use_direct_io_for_flush_and_compaction \
      --write_buffer_size=$((4 << 20)) --target_file_size_base=$((4 << 20)) --max_background_jobs=2 --threads=1 2>&1
    end=$(now)
    ;;
  hdfs)
    . "$here/hdfs.sh"
    hdfs_configure "$dir"
    hdfs_start "$dir"
    begin=$(now)
    fs -put "$dir/file" /file
    find "$dir/blocks" -name 'blk_*' -exec dd if={} iflag=nocache count=0 status=none \;
    fs -cat /file | cmp - "$dir/file"
    end=$(now)
    echo "same: yes"
    ;;
esac
awk -v b="$begin" -v e="$end" 'BEGIN { printf "seconds: %.6f\n", e - b }'
