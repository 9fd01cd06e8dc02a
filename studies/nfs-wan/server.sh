# Puts up two network namespaces of the guest, server and client, a link between them, and the kernel's NFS server
# with two exports: /srv/tmpfs in memory and /srv/ext4 on the guest's disk. Runs once after each boot.
set -e
for f in "udp tpi_clts v inet udp - -" "tcp tpi_cots_ord v inet tcp - -" "local tpi_cots_ord - loopback - - -"; do
  echo "$f"
done > /etc/netconfig
printf '%s\n' 'nfs 2049/tcp' 'nfs 2049/udp' 'sunrpc 111/tcp portmapper' 'sunrpc 111/udp portmapper' \
  'mountd 20048/tcp' 'mountd 20048/udp' > /etc/services
printf 'tcp 6 TCP\nudp 17 UDP\n' > /etc/protocols
printf 'root:x:0:0::/:/bin/sh\n_rpc:x:107:65534::/run/rpcbind:/bin/false\nnobody:x:65534:65534::/:/bin/false\n' > /etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' > /etc/group
mkdir -p /var/lib/nfs /run/netns /run/rpcbind /srv/tmpfs /srv/ext4 /mnt /etc/exports.d
ln -sfn /run /var/run
ln -sf /proc/mounts /etc/mtab
: > /etc/exports; : > /var/lib/nfs/etab; : > /var/lib/nfs/rmtab
chmod 777 /run/rpcbind

ip netns add server; ip netns add client
ip link add s type veth peer name c
ip link set s netns server; ip link set c netns client
on() { nsenter --net=/run/netns/$1 "${@:2}"; }
for end in "server s 10.9.0.1" "client c 10.9.0.2"; do
  set -- $end
  on $1 ip link set lo up; on $1 ip addr add $3/24 dev $2; on $1 ip link set $2 up
done

mount -t tmpfs -o size=128m tmpfs /srv/tmpfs
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vdb
mount -t ext4 /dev/vdb /srv/ext4
on server mount -t nfsd nfsd /proc/fs/nfsd
echo 1048576 > /proc/fs/nfsd/max_block_size  # a small memory would bring 128 kB
on server rpcbind
listed() { on server rpcinfo -p 2>/dev/null | grep -Eq "^ +$1 +$2 +tcp "; }
awaited() {
  for _ in $(seq 100); do listed "$@" && return; sleep 0.1; done
  echo "RPC program $1 version $2 is not there" >&2
  return 1
}
awaited 100000 2
on server rpc.nfsd -G 10 -L 10 8
on server rpc.mountd -p 20048
awaited 100003 3; awaited 100003 4; awaited 100005 3
for export in "1 /srv/tmpfs" "2 /srv/ext4"; do
  set -- $export
  on server exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=$1 10.9.0.2:$2
done
# the server takes no new NFSv4 files for its first ten seconds: here they pass, and in no run
on client mount -t nfs -o vers=4.2,proto=tcp 10.9.0.1:/srv/tmpfs /mnt
touch /mnt/first; rm /mnt/first; umount /mnt
