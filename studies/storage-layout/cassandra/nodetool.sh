#!/usr/bin/env bash
# nodetool.sh LIB NUMBER WORDS…: nodetool of the node NUMBER (node.sh).
set -euo pipefail
lib=$1 number=$2 here=$(cd "$(dirname "$0")" && pwd)
shift 2
. "$here/flags.sh"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
java -Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "${flags[@]}" -Duser.home="$home" -Dcassandra.storagedir="$home" \
  -Dlogback.configurationFile="$here/logback.xml" -cp "$lib/lib/*" org.apache.cassandra.tools.NodeTool -p $((17000 + 10 * number + 2)) "$@"
