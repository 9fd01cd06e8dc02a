#!/usr/bin/env bash
# node.sh LIB DIR NUMBER WORDS…: one Cassandra node (5.0, data files mapped) with its data in DIR/cassandra, on loopback
# ports of its own (NUMBER), runs `Rows WORDS`. Its log goes to DIR/cassandra.log; Rows' output to stdout.
#   HEAP      -Xmx of the JVM (default 384m)
#   ACCESS    disk_access_mode (default mmap)
#   MAIN      what runs it instead of Rows: a class, or a Java file
set -euo pipefail
lib=$1 dir=$2 number=$3 here=$(cd "$(dirname "$0")" && pwd)
shift 3
conf=$(mktemp -d)
trap 'rm -rf "$conf"' EXIT
port=$((17000 + 10 * number))
cat > "$conf/cassandra.yaml" <<Y
cluster_name: storage-layout
num_tokens: 1
initial_token: "0"
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
data_file_directories: [$dir/cassandra/data]
commitlog_directory: $dir/cassandra/commitlog
saved_caches_directory: $dir/cassandra/saved_caches
hints_directory: $dir/cassandra/hints
cdc_raw_directory: $dir/cassandra/cdc_raw
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_segment_size: 8MiB
commitlog_total_space: 64MiB
disk_access_mode: ${ACCESS:-mmap}
memtable_heap_space: 96MiB
memtable_offheap_space: 16MiB
memtable_flush_writers: 1
concurrent_reads: 2
concurrent_writes: 2
concurrent_compactors: 1
autocompaction_on_startup_enabled: false
seed_provider: [{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{seeds: "127.0.0.1:$port"}]}]
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: $port
start_native_transport: false
native_transport_port: $((port + 1))
endpoint_snitch: SimpleSnitch
auto_bootstrap: false
Y
mkdir -p "$dir/cassandra"
. "$here/flags.sh"
java -Xms128m -Xmx"${HEAP:-384m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -XX:MaxDirectMemorySize=128m \
  -Djdk.attach.allowAttachSelf=true "${flags[@]}" -Dcassandra.config="file://$conf/cassandra.yaml" \
  -Dcassandra.storagedir="$dir/cassandra" -Dcassandra.ring_delay_ms=100 -Dcassandra.skip_wait_for_gossip_to_settle=0 \
  -Dcassandra.jmx.local.port=$((port + 2)) -Dcassandra-foreground=yes -Dlogback.configurationFile="$here/logback.xml" \
  -Djava.io.tmpdir="$conf" -cp "$lib/classes:$lib/lib/*" "${MAIN:-Rows}" "$@" 2> "$dir/cassandra.log" ||
  { status=$?; grep -v WARN "$dir/cassandra.log" | tail -n 5 >&2; exit $status; }
