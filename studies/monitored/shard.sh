#!/bin/sh -e
# In a shard: PostgreSQL over the disk at /disks/data, with so many records of half a kilobyte.
bin=/usr/lib/postgresql/15/bin
install -d -o postgres /run/shard
install -d -o postgres -m 700 /disks/data/pg
as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
as $bin/initdb -D /disks/data/pg -A trust -U postgres --locale=C -E UTF8 >/run/shard/initdb.log
cat >>/disks/data/pg/postgresql.conf <<'C'
listen_addresses = ''
unix_socket_directories = '/run/shard'
shared_buffers = 32MB
maintenance_work_mem = 256MB
max_parallel_maintenance_workers = 0
wal_level = minimal
max_wal_senders = 0
max_wal_size = 4GB
autovacuum = off
backend_flush_after = 256kB
C
as $bin/pg_ctl -s -w -t 120 -D /disks/data/pg -l /run/shard/log start
psql -qX -h /run/shard -U postgres -v ON_ERROR_STOP=1 postgres \
    -c "create table records as select repeat(md5(i::text), 15) as word from generate_series(1, $1) i" \
    -c checkpoint
