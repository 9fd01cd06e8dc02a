#!/usr/bin/env bash
# logged.sh NAME COMMAND...: run a command with its output in .venv/NAME.log; if it fails, show the end of that.
set -uo pipefail

log=.venv/$1.log
shift
mkdir -p .venv
"$@" >"$log" 2>&1 && exit
status=$?
tail -n 30 "$log" >&2
echo "penstock: '$1' failed with status $status; its whole output is in $log" >&2
exit "$status"
