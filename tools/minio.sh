#!/usr/bin/env bash
# minio.sh [DIR]: the object store MinIO (AGPL, called as a program) as DIR/minio, built by Go from its module proxy, about five
# minutes once. Default: penstock/minio in the user's cache folder. stdout: DIR. Does nothing when it is there.
set -euo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock/minio}
mkdir -p "$dir"
exec 9> "$dir/lock"
flock 9
if [ ! -x "$dir/minio" ]; then
  PATH=$PATH:/usr/local/go/bin
  command -v go >/dev/null || { echo "MinIO needs go (Debian: apt-get install golang-go, or a newer one)" >&2; exit 1; }
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
  (cd "$build" && go mod init penstock >&2 && GOBIN="$dir" go install -ldflags="-s -w" github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c >&2)
fi
echo "$dir"
