#!/usr/bin/env bash
# get.sh DIR: Cassandra's classes in DIR/lib (about 70 MB through Maven as it is set up on this machine) and Rows.java
# compiled in DIR/classes.
set -euo pipefail
dir=$1 here=$(cd "$(dirname "$0")" && pwd)
for program in mvn javac; do
  command -v $program >/dev/null || { echo "Cassandra needs $program (Debian: apt-get install maven openjdk-17-jdk-headless)" >&2; exit 1; }
done
mkdir -p "$dir"
exec 9> "$dir/lock"
flock 9
if [ ! -e "$dir/complete" ]; then
  cp "$here/pom.xml" "$dir/pom.xml"
  (cd "$dir" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib) >&2
  touch "$dir/complete"
fi
if [ ! "$dir/classes/Rows.class" -nt "$here/Rows.java" ]; then
  javac -nowarn -cp "$dir/lib/*" -d "$dir/classes" "$here/Rows.java"
fi
