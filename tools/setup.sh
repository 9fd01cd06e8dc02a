#!/usr/bin/env bash
# setup.sh run|build|test|stores: install the Debian packages that are missing, or name them.
#   run     what penstock and the demo need where a wheel is installed
#   build   run, and what compiles penstock
#   test    build, and the programs that `make test` runs
#   stores  test, and what `make test-long` starts: shared stores, LaTeX
set -euo pipefail

# COMMAND:PACKAGE; the command, or the file, proves that the package is installed
run=(
  fusermount3:fuse3 fio:fio ip:iproute2 nsenter:util-linux losetup:mount /usr/lib/x86_64-linux-gnu/libelf.so.1:libelf1
)
build=(
  clang:clang pkg-config:pkg-config cc:gcc /usr/include/libelf.h:libelf-dev /usr/include/zlib.h:zlib1g-dev
)
test=(
  bpftool:bpftool blkparse:blktrace strace:strace bpftrace:bpftrace chromium:chromium runc:runc sshd:openssh-server iperf3:iperf3
  mkfs.ext4:e2fsprogs /usr/lib/postgresql/15/bin/initdb:postgresql
  qemu-system-x86_64:qemu-system-x86 /bin/busybox:busybox-static cpio:cpio zstd:zstd depmod:kmod xz:xz-utils
  /usr/include/wiredtiger.h:libwiredtiger-dev g++:g++ /usr/include/simgrid/s4u.hpp:libsimgrid-dev
  mfsmaster:moosefs-master mfschunkserver:moosefs-chunkserver mfsmount:moosefs-client mfscli:moosefs-cli
  setfattr:attr rpc.nfsd:nfs-kernel-server rpcbind:rpcbind
  prometheus:prometheus prometheus-node-exporter:prometheus-node-exporter collectd:collectd-core influxd:influxdb
  victoria-metrics:victoria-metrics carbon-cache:graphite-carbon graphite-manage:graphite-web
  /usr/bin/swift-proxy-server:swift-proxy /usr/bin/swift-account-server:swift-account
  /usr/bin/swift-container-server:swift-container /usr/bin/swift-object-server:swift-object memcached:memcached
  transmission-daemon:transmission-daemon transmission-create:transmission-cli opentracker:opentracker
  zsh:zsh fish:fish groff:groff-base db_bench:rocksdb-tools /usr/lib/sysstat/sadc:sysstat
)
stores=(
  glusterd:glusterfs-server mount.glusterfs:glusterfs-client
  ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-mds:ceph-mds ceph-osd:ceph-osd ceph:ceph-common ceph-fuse:ceph-fuse
  /usr/lib/python3/dist-packages/rados.cpython-311-x86_64-linux-gnu.so:python3-rados
  mvn:maven javac:openjdk-17-jdk-headless pdflatex:texlive-latex-base
  /usr/share/texlive/texmf-dist/tex/latex/pgf:texlive-pictures
)
# UNIT:PACKAGE; services that would start with the machine
services=(
  transmission-daemon:transmission-daemon opentracker:opentracker memcached:memcached
  nfs-kernel-server:nfs-kernel-server rpcbind:rpcbind sysstat:sysstat swift-proxy:swift-proxy
  swift-account:swift-account swift-container:swift-container swift-object:swift-object
  carbon-cache:graphite-carbon victoria-metrics:victoria-metrics glusterd:glusterfs-server
  ceph-mon.target:ceph-mon ceph-mgr.target:ceph-mgr ceph-mds.target:ceph-mds ceph-osd.target:ceph-osd
)

list=${1:-build}
case $list in
  run) needs=("${run[@]}") ;;
  build) needs=("${run[@]}" "${build[@]}") ;;
  test) needs=("${run[@]}" "${build[@]}" "${test[@]}") ;;
  stores) needs=("${run[@]}" "${build[@]}" "${test[@]}" "${stores[@]}") ;;
  *) echo "penstock: setup.sh: found '$list'; expected run, build, test or stores" >&2; exit 2 ;;
esac

python3 - <<'P' || { echo "penstock: python3 is older than 3.11; install Python 3.11 or newer" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
P
if [ "$list" != run ]; then
  if ! command -v cargo >/dev/null 2>&1; then
    echo "penstock: cargo is missing: install Rust with rustup (see rustup.rs), or use a wheel: make demo PENSTOCK_WHEEL=FILE" >&2
    exit 1
  fi
  want=1.85
  if ! have=$(cargo --version 2>&1); then
    echo "penstock: cargo --version fails: $(printf '%s' "$have" | head -n 3)" >&2
    echo "penstock: expected a Rust toolchain, $want or newer: rustup default stable" >&2
    exit 1
  fi
  have=$(printf '%s' "$have" | awk '{print $2}')
  if [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
    echo "penstock: cargo $have is too old, $want or newer is needed: rustup update stable" >&2
    exit 1
  fi
fi

missing=()
for need in "${needs[@]}"; do
  probe=${need%%:*}
  case $probe in
    /*) [ -e "$probe" ] || missing+=("${need##*:}") ;;
    *) command -v "$probe" >/dev/null 2>&1 || [ -x "/usr/sbin/$probe" ] || missing+=("${need##*:}") ;;
  esac
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

# the packages to install, with the sizes that apt-get states for them and their dependencies
announce() {
  local sizes
  sizes=$(LC_ALL=C apt-get install --assume-no --no-install-recommends "${missing[@]}" 2>/dev/null | sed -nE \
    -e 's/.* ([0-9]+) newly installed.*/\1 with dependencies/p' -e 's/^Need to get ([^/]*\/)?([0-9.,]+ .?B).*/\2 to download/p' \
    -e 's/^After this operation, ([0-9.,]+ .?B).*/\1 on disk/p' | paste -sd '|' | sed 's/|/, /g') || true
  echo "penstock: installing ${#missing[@]} Debian packages ($sizes): ${missing[*]}" >&2
}

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    # none of their services starts when it is installed: tests start their own, on free ports
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      trap 'rm -f "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod 755 "$policy"
    fi
    apt-get -o DPkg::Lock::Timeout=600 -qq update
    announce
    bash tools/logged.sh packages apt-get -o DPkg::Lock::Timeout=600 -qq install -y --no-install-recommends "${missing[@]}"
    # nor after the next boot
    for service in "${services[@]}"; do
      case " ${missing[*]} " in
        *" ${service##*:} "*) systemctl disable -q "${service%%:*}" 2>/dev/null || true ;;
      esac
    done
  else
    echo "penstock: these packages are missing: ${missing[*]}" >&2
    if command -v apt-get >/dev/null 2>&1; then
      echo "penstock: get them with: sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    else
      echo "penstock: this is not a Debian system; install what provides: ${missing[*]}" >&2
    fi
    exit 1
  fi
fi
