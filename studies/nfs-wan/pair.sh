# pair.sh VERSION STORAGE MODE IO_BYTES FILE_BYTES: writes a file over NFS, empties the caches of client and server, mounts
# anew, reads it, and prints one JSON object. Ends with 1 where a cache was not empty or the file is not whole.
set -e
version=$1 storage=$2 mode=$3 io=$4 size=$5
options="vers=$version,$mode,rsize=$io,wsize=$io,proto=tcp,noatime"
[ "$version" = 3 ] && options="$options,nolock,mountproto=tcp"
block=$((size < 1048576 ? size : 1048576))
served=/srv/$storage/file
now() { echo "${EPOCHREALTIME/./}"; }  # microseconds
mounted() { nsenter --net=/run/netns/client mount -t nfs -o "$options" 10.9.0.1:/srv/$storage /mnt; }
share() {  # of a file's pages in the page cache, in percent
  fincore -nrb -o PAGES,SIZE "$1" | awk '{pages = int(($2 + 4095) / 4096); print pages ? int(100 * $1 / pages) : 0}'
}
emptied() { sync; echo 3 > /proc/sys/vm/drop_caches; }
trap 'umount -l /mnt 2>/dev/null || true; rm -f "$served"' EXIT

rm -f "$served"; emptied
mounted
[ "$(grep -c " /mnt nfs.*[ ,]rsize=$io,wsize=$io," /proc/mounts)" = 1 ] || { echo "the I/O size is not $io" >&2; exit 1; }

t0=$(now)
exec 4> /mnt/file
dd if=/dev/zero bs=$block count=$((size / block)) status=none >&4
t1=$(now)
exec 4>&-  # what is still on its way is flushed where a file is closed
t2=$(now)
umount /mnt
[ "$(stat -c %s "$served")" = "$size" ] || { echo "the file is not $size bytes long" >&2; exit 1; }

emptied
mounted
at_client=$(share /mnt/file) at_server=0
[ "$storage" = tmpfs ] || at_server=$(share "$served")  # the memory of a tmpfs is its storage
if [ "$at_client" -gt 1 ] || [ "$at_server" -gt 1 ]; then
  echo "$at_client % of the file in the client's page cache, $at_server % in the server's; expected at most 1" >&2
  exit 1
fi
t3=$(now)
cp /mnt/file /dev/null
t4=$(now)
umount /mnt
awk -v b="$size" -v t0="$t0" -v t1="$t1" -v t2="$t2" -v t3="$t3" -v t4="$t4" 'BEGIN {
  printf "{\"write\": %.6f, \"unflushed\": %.6f, \"read\": %.6f}\n",
    b / (t2 - t0), b / (t1 - t0), b / (t4 - t3)
}'
