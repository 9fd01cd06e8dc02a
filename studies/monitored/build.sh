#!/bin/sh -e
# In a shard: so many builds of an index that is as large as its table, each written through to the disk.
for build in $(seq "$1"); do
    psql -qX -h /run/shard -U postgres -v ON_ERROR_STOP=1 postgres \
        -c 'set client_min_messages = warning' -c 'drop index if exists by_word' -c 'create index by_word on records (word)' -c checkpoint
done
