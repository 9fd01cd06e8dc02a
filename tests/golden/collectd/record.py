"""Records what collectd sends to Graphite of one host and one OSD of Ceph, in the four forms that it has.

    python tests/golden/collectd/record.py SECONDS

What lies here was sent by collectd 5.12 of Debian 12, all forms by the same daemon, in the same seconds. The
OSD is a socket with the answers of `tests/golden/ceph/osd.json`; at each dump every counter has grown by 8.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FORMS = {
    "counters": "StoreRates false",
    "rates": 'StoreRates true\nPrefix "collectd."',
    "separate": "StoreRates false\nSeparateInstances true\nAlwaysAppendDS true",
    "tags": "StoreRates false\nUseTags true",
}
PLUGINS = ("cpu", "memory", "load", "disk", "interface", "df", "ceph", "write_graphite")
#: what is kept of all that is sent
KEPT = re.compile(
    r".*\bcpu[.;-]|.*\b(load|memory)[.;]"
    r"|.*\b(vda|eth0|root)\b.*\b(disk_(octets|ops|io_time)|if_octets|df_complex)"
    r"|.*(Osd.op(R|W|ROutBytes|WInBytes|WLatency)|Bluestore.commitLat)(\.value)? "
)


def taken(listener: socket.socket, into: list[bytes]) -> None:
    """Receive the data of one connection until it ends."""
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            into.append(data)


def osd(listener: socket.socket) -> None:
    """The answers of an OSD to the commands that collectd knows."""
    said: dict[str, Any] = json.loads((HERE.parent / "ceph/osd.json").read_text())
    while True:
        connection, _ = listener.accept()
        with connection:
            command = json.loads(connection.recv(1000).rstrip(b"\0\n"))["prefix"]
            if command == "0":
                connection.sendall((1).to_bytes(4, "big"))
                continue
            answer = json.dumps(said["perf schema" if command == "2" else "perf dump"]).encode()
            connection.sendall(len(answer).to_bytes(4, "big") + answer)
            if command == "1":
                for own in said["perf dump"].values():
                    for name, value in own.items():
                        if isinstance(value, dict):
                            value["avgcount"] += 8
                            value["sum"] += 0.25
                        else:
                            own[name] = value + 8


def recorded(seconds: float) -> dict[str, bytes]:
    """The lines of each form."""
    lines: dict[str, list[bytes]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory() as place:
        admin = socket.socket(socket.AF_UNIX)
        admin.bind(f"{place}/osd.asok")
        admin.listen()
        threading.Thread(target=osd, args=(admin,), daemon=True).start()
        settings = [
            'Hostname "node.a"\nFQDNLookup false\nInterval 1',
            f'BaseDir "{place}"\nPIDFile "{place}/pid"',
            'PluginDir "/usr/lib/collectd"\nTypesDB "/usr/share/collectd/types.db"',
            *(f"LoadPlugin {name}" for name in PLUGINS),
            f'<Plugin ceph>\n<Daemon "osd.0">\nSocketPath "{place}/osd.asok"\n</Daemon>\n</Plugin>',
            "<Plugin write_graphite>",
        ]
        takers = []
        for form, options in FORMS.items():
            listener = socket.create_server(("127.0.0.1", 0))
            takers.append(threading.Thread(target=taken, args=(listener, lines[form])))
            port = listener.getsockname()[1]
            to = f'Host "127.0.0.1"\nPort "{port}"\nProtocol "tcp"'
            settings.append(f'<Node "{form}">\n{to}\n{options}\n</Node>')
        config = Path(place) / "conf"
        config.write_text("\n".join([*settings, "</Plugin>", ""]))
        for taker in takers:
            taker.start()
        with subprocess.Popen(["collectd", "-f", "-C", str(config)]) as collectd:
            time.sleep(seconds)
            collectd.terminate()
        for taker in takers:
            taker.join()
    return {form: b"".join(parts) for form, parts in lines.items()}


if __name__ == "__main__":
    for form, sent in recorded(float(sys.argv[1])).items():
        own = [line for line in sent.decode().replace("\r", "").splitlines() if KEPT.match(line)]
        own.sort(key=lambda line: line.split()[::-2])
        (HERE / f"{form}.txt").write_text("\n".join(own) + "\n")
