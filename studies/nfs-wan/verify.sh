# verify.sh DELAY_MS: the link is as slow as it is to be; prints the shortest of five round trips [ms]. It is twice the delay, and
# at most 10 ms more: the guest's own processor, which is software, has its part in it, and more so on a busy host.
rtt=$(nsenter --net=/run/netns/client ping -q -c 5 -i 0.1 10.9.0.1 | sed -n 's,.*= \([0-9.]*\)/.*,\1,p')
echo "$rtt"
awk -v rtt="$rtt" -v delay="$1" 'BEGIN {
  if (rtt >= 1.98 * delay && rtt <= 2 * delay + 10) exit 0
  printf "a round trip takes %s ms; expected %s and at most 10 more\n", rtt, 2 * delay > "/dev/stderr"
  exit 1
}'
