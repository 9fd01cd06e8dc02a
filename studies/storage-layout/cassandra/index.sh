#!/usr/bin/env bash
# index.sh MEMORY A B RUN_DIR LIB: builds a secondary index on the rows of prepare.sh. MEMORY is that of all nodes:
#   1GiB     one node
#   512MiB   one node with half the memory (and half the heap)
#   2GiB     two nodes of half the rows each, at the same time, each with 1 GiB, a core and a disk of its own
# stdout: `seconds` (of the slower node), `cpu_seconds` (of all), `with_seven` (rows that a query through the index
# finds); RUN_DIR/nodes: what each node printed.
set -euo pipefail
memory=$1 a=$2 b=$3 out=$4 lib=$5
here=$(cd "$(dirname "$0")" && pwd)
node() { # node CORE DIR NUMBER
  taskset -c "$1" "$here/node.sh" "$lib" "$2" "$3" index > "$out/node-$3"
}
case $memory in
  1GiB) HEAP=384m node 0 "$a" 0 ;;
  512MiB) HEAP=192m node 0 "$a" 0 ;;
  2GiB)
    export HEAP=384m
    node 0 "$a" 0 &
    node 1 "$b" 1
    wait $!
    ;;
  *) echo "index.sh: found the memory $memory; expected 1GiB, 512MiB or 2GiB" >&2; exit 2 ;;
esac
cat "$out"/node-* > "$out/nodes"
awk -F': ' '$1 == "seconds" && $2 > most { most = $2 }
  $1 == "cpu_seconds" { cpu += $2 }
  $1 == "with_seven" { found += $2 }
  END { printf "seconds: %.6f\ncpu_seconds: %.6f\nwith_seven: %d\n", most, cpu, found }' "$out/nodes"
