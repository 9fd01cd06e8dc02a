# verify.sh DELAY_MS: the link is as slow as it is to be. A round trip is twice the delay, and at most 3 ms more: the guest's own
# processor, which is software, has its part in it.
rtt=$(nsenter --net=/run/netns/client ping -q -c 3 10.9.0.1 | sed -n 's,.*= \([0-9.]*\)/.*,\1,p')
awk -v rtt="$rtt" -v delay="$1" 'BEGIN {
  if (rtt >= 1.9 * delay && rtt <= 2.1 * delay + 3) exit 0
  printf "a round trip takes %s ms; expected %s and at most 3 more\n", rtt, 2 * delay > "/dev/stderr"
  exit 1
}'
