# link.sh DELAY_MS: the one-way delay of both directions.
set -e
nsenter --net=/run/netns/server tc qdisc replace dev s root netem delay "$1ms" limit 100000
nsenter --net=/run/netns/client tc qdisc replace dev c root netem delay "$1ms" limit 100000
