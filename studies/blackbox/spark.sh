#!/usr/bin/env bash
# spark.sh VENV PYTHON: a virtual environment with Spark in VENV (about 320 MB from the package index), once.
set -euo pipefail
venv=$1 python=$2
[ -e "$venv/complete" ] && exit 0
command -v java >/dev/null || { echo "Spark needs Java (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check "pyspark==3.5.5"
touch "$venv/complete"
