#!/bin/sh -e
# Index builds on three shards at once, between two idle times: shards.sh SECONDS BUILDS COMMANDS
penstock monitor start shards
sleep "$1"
date +%s.%N
for shard in 0 1 2; do
    "$3/in-shard-$shard" /disks/data/build.sh "$2" &
done
wait
date +%s.%N
sleep "$1"
penstock monitor stop shards
