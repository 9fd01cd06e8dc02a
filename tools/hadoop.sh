#!/usr/bin/env bash
# hadoop.sh [DIR [POM]]: Hadoop's classes (HDFS, YARN, MapReduce and the examples; about 150 MB) in DIR/lib, or those that POM
# names, through Maven as it is set up on this machine. Default: penstock/hadoop in the user's cache folder. stdout: DIR. Does
# nothing when they are there.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock/hadoop}
pom=${2:-$here/studies/hadoop/pom.xml}
for program in mvn java; do
  command -v $program >/dev/null || { echo "Hadoop needs $program (Debian: apt-get install maven openjdk-17-jre-headless)" >&2; exit 1; }
done
mkdir -p "$dir"
exec 9> "$dir/lock"
flock 9
if ! cmp -s "$dir/complete" "$pom"; then
  rm -rf "$dir/lib"
  cp "$pom" "$dir/pom.xml"
  (cd "$dir" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib) >&2
  cp "$dir/pom.xml" "$dir/complete"
fi
echo "$dir"
