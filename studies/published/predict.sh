#!/bin/sh
# predict.sh PYTHON RUN_DIR SCHEDULER WORKLOAD OPTIONS...: makes the workload, with placement hints if the scheduler
# looks for the data, and predicts it.
set -eu
python=$1 dir=$2 scheduler=$3 workload=$4
shift 4
hints=
[ "$scheduler" = data_location ] && hints=--optimised
# the workload is several words
# shellcheck disable=SC2086
"$python" -m penstock workload make $workload $hints -o "$dir/workload.json" >&2
exec "$python" -m penstock predict "$dir/workload.json" "$@" --set scheduler.kind="$scheduler" --no-explain --quiet --json
