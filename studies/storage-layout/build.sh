#!/usr/bin/env bash
# build.sh DIR: the program `records` (records.c, with WiredTiger) in DIR, or what is missing for it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ "$1/records" -nt "$here/records.c" ] && exit
if ! command -v cc >/dev/null || [ ! -e /usr/include/wiredtiger.h ]; then
  echo "storage-layout: WiredTiger's header or a C compiler is missing: apt-get install gcc libwiredtiger-dev" >&2
  exit 1
fi
mkdir -p "$1"
cc -O2 -Wall -Wextra -o "$1/records.$$" "$here/records.c" -lwiredtiger
mv "$1/records.$$" "$1/records"
