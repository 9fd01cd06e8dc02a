#!/usr/bin/env bash
# Installs the Debian packages that penstock's build, tests and demo need, or says what is missing.
# setup.sh stores: also the stores that the long tests put up.
set -euo pipefail

# command that proves it is there : Debian package
needs=(
  clang:clang llvm-strip:llvm bpftool:bpftool pkg-config:pkg-config cc:gcc
  fusermount3:fuse3 fio:fio blkparse:blktrace strace:strace bpftrace:bpftrace chromium:chromium
  runc:runc sshd:openssh-server ip:iproute2 nsenter:util-linux iperf3:iperf3 losetup:mount
  mkfs.ext4:e2fsprogs /usr/lib/postgresql/15/bin/initdb:postgresql
  qemu-system-x86_64:qemu-system-x86 /bin/busybox:busybox-static cpio:cpio zstd:zstd depmod:kmod xz:xz-utils
  /usr/include/libelf.h:libelf-dev /usr/include/zlib.h:zlib1g-dev
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
  mvn:maven javac:openjdk-17-jdk-headless
)
[ "${1:-}" = stores ] && needs+=("${stores[@]}")
missing=()
for need in "${needs[@]}"; do
  probe=${need%%:*}
  case $probe in
    /*) [ -e "$probe" ] || missing+=("${need##*:}") ;;
    *) command -v "$probe" >/dev/null 2>&1 || [ -x "/usr/sbin/$probe" ] || missing+=("${need##*:}") ;;
  esac
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "penstock: installing ${#missing[@]} Debian packages, which takes some minutes: ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    # none of their services begins by being installed: tests put up their own, on free ports
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      trap 'rm -f "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod 755 "$policy"
    fi
    apt-get -o DPkg::Lock::Timeout=600 -qq update
    apt-get -o DPkg::Lock::Timeout=600 -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
    # nor after the next boot
    for service in transmission-daemon opentracker memcached nfs-kernel-server rpcbind sysstat \
      swift-proxy swift-account swift-container swift-object graphite-carbon:carbon-cache victoria-metrics \
      glusterfs-server:glusterd ceph-mon:ceph-mon.target ceph-mgr:ceph-mgr.target ceph-mds:ceph-mds.target \
      ceph-osd:ceph-osd.target; do
      case " ${missing[*]} " in
        *" ${service%%:*} "*) systemctl disable -q "${service##*:}" 2>/dev/null || true ;;
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

if ! command -v cargo >/dev/null 2>&1; then
  echo "penstock: cargo is missing; install Rust with rustup (its own page, rustup.rs, says how), then run make again" >&2
  exit 1
fi
want=1.85
have=$(cargo --version | awk '{print $2}')
if [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
  echo "penstock: cargo $have is too old, $want or newer is needed: rustup update stable" >&2
  exit 1
fi
python3 - <<'P' || { echo "penstock: python3 is older than 3.11; install Python 3.11 or newer" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
P
