"""Monitor two sites in network namespaces from a third one; run by `unshare -n`, print the offsets.

    unshare -n python two_sites.py NAME SHIFT_NS CUT_S

The clock of the second site is this host's plus SHIFT_NS, because namespaces share the time of day.
Its link is cut for CUT_S. A collector per site scrapes it into the experiment NAME.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import time
import urllib.request
from typing import Any

PORT = 9100


def site(name: str, shift_ns: int) -> None:
    """Serve a metric with a timestamp of the site's clock, and the clock, after a line on stdin."""
    sys.stdin.readline()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            now = time.time_ns() + shift_ns
            line = f'site_load{{site="{name}"}} 0.5 {now // 1_000_000}\n'
            body = (line if self.path == "/metrics" else str(now)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    http.server.ThreadingHTTPServer(("", PORT), Handler).serve_forever()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def main(name: str, shift_ns: int, cut_s: float) -> None:
    from penstock.archive.catalogue import local_user, open_index
    from penstock.host.probe.clock_offset import measure
    from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
    from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home

    sites = {}
    for number, (site_name, shift) in enumerate((("a", 0), ("b", shift_ns))):
        argv = ["unshare", "-n", sys.executable, __file__, "site", site_name, str(shift)]
        sites[site_name] = process = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)
        while True:  # until it has its namespace
            own_namespace, site_namespace = (
                subprocess.run(["readlink", f"/proc/{p}/ns/net"], capture_output=True).stdout
                for p in ("self", process.pid)
            )
            if site_namespace != own_namespace:
                break
            time.sleep(0.05)
        ip("link", "add", f"v{site_name}", "type", "veth", "peer", "name", "e0")
        ip("link", "set", "e0", "netns", str(process.pid))
        ip("addr", "add", f"10.77.{number}.1/24", "dev", f"v{site_name}")
        ip("link", "set", f"v{site_name}", "up")
        ip_in_site = ["nsenter", "-t", str(process.pid), "-n", "ip"]
        subprocess.run(
            [*ip_in_site, "addr", "add", f"10.77.{number}.2/24", "dev", "e0"], check=True
        )
        subprocess.run([*ip_in_site, "link", "set", "e0", "up"], check=True)
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)

    def clock(number: int) -> int:
        with urllib.request.urlopen(f"http://10.77.{number}.2:{PORT}/time", timeout=20) as response:
            return int(response.read())

    def offsets() -> list[dict[str, int]]:
        return [vars(measure(lambda of=n: clock(of))) for n in range(2)]  # type: ignore[misc]

    try:
        for number in range(2):
            while True:  # until it answers
                try:
                    clock(number)
                    break
                except OSError:
                    time.sleep(0.1)
        store = Experiments(open_index(), experiments_home())
        experiment = store.start(name, local_user())
        collectors = {
            f"site-{site_name}": {
                "type": "scrape",
                "targets": [{"url": f"http://10.77.{n}.2:{PORT}/metrics", "instance": site_name}],
                "interval_s": 0.5,
                "timeout_s": 0.4,
                "own_times": True,
            }
            for n, site_name in enumerate("ab")
        }
        offsets_before = offsets()
        with Collecting(collectors_of(collectors), store.sink(experiment)):
            time.sleep(2)
            ip("link", "set", "vb", "down")
            time.sleep(cut_s)
            ip("link", "set", "vb", "up")
            time.sleep(5)
        offsets_after = offsets()
        store.stop(experiment)
        print(json.dumps({"before": offsets_before, "after": offsets_after}))
    finally:
        for process in sites.values():
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    if sys.argv[1] == "site":
        site(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
