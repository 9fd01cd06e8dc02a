#!/usr/bin/env bash
# prepare.sh MEMORY A B COUNT LIB: the rows of a node, or of two nodes with half of them each, in the directories A
# and B of their disks; five flushes, so five data files. Two nodes where MEMORY is that of two (see index.sh).
set -euo pipefail
memory=$1 a=$2 b=$3 count=$4 lib=$5
here=$(cd "$(dirname "$0")" && pwd)
"$here/get.sh" "$lib"
if [ "$memory" = 2GiB ]; then
  "$here/node.sh" "$lib" "$a" 0 load $((count / 2)) 5 1264
  "$here/node.sh" "$lib" "$b" 1 load $((count / 2)) 5 1281
else
  "$here/node.sh" "$lib" "$a" 0 load "$count" 5 1264
fi
