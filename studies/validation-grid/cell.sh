#!/bin/sh
# cell.sh ENGINE PATTERN DIRECT BLOCKS FILE OUT: one cell of the validation grid; BLOCKS of 64 KiB, 0: the whole file
set -eu
engine=$1 pattern=$2 direct=$3 blocks=$4 file=$5 out=$6
[ "$engine" = mmap ] && direct=0
size=$((blocks * 65536))
[ "$blocks" = 0 ] && size=$(stat -c %s "$file")
set -- --name=cell --filename="$file" --rw="$pattern" --bs=64k --size="$size" --ioengine="$engine" --direct="$direct" \
  --fallocate=none --randseed=7 --allow_file_create=0
case $engine in posixaio|libaio|io_uring) set -- "$@" --iodepth=4 ;; esac
case $pattern in *write|randrw) set -- "$@" --end_fsync=1 ;; esac
exec fio "$@" --output-format=json+ --output="$out/fio.json"
