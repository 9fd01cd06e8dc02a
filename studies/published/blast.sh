#!/bin/sh
# blast.sh PYTHON RUN_DIR NODES APP PLATFORM OPTIONS...: BLAST on APP application hosts; of NODES hosts one is the manager,
# the others are storage.
set -eu
python=$1 dir=$2 nodes=$3 app=$4 platform=$5
shift 5
"$python" "$(dirname "$0")/blast_workload.py" "$app" > "$dir/workload.json"
exec "$python" -m penstock predict "$dir/workload.json" --platform "$platform" --set hosts.app.count="$app" \
  --set hosts.storage.count=$((nodes - 1 - app)) "$@" --no-explain --quiet --json
