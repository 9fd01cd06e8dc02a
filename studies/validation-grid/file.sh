#!/bin/sh
# file.sh LIMIT MB FILE: a file of whole blocks of 64 KiB that takes at most 4 s at the limit
set -eu
case $1 in *k) rate=$((${1%k} * 1000)) ;; *m) rate=$((${1%m} * 1000000)) ;; esac
size=$(($2 * 1000000)) most=$((4 * rate))
[ "$size" -gt "$most" ] && size=$most
dd if=/dev/urandom of="$3" bs=65536 count=$((size / 65536)) conv=fsync status=none
