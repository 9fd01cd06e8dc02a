"""Record the lines that collectd sends to Graphite for one host and one Ceph OSD, in its four formats.

    python tests/golden/collectd/record.py SECONDS

The stored files were sent by collectd 5.12 of Debian 12, all formats by the same daemon at the same time. The
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
#: the lines that are stored
SELECTED = re.compile(
    r".*\bcpu[.;-]|.*\b(load|memory)[.;]"
    r"|.*\b(vda|eth0|root)\b.*\b(disk_(octets|ops|io_time)|if_octets|df_complex)"
    r"|.*(Osd.op(R|W|ROutBytes|WInBytes|WLatency)|Bluestore.commitLat)(\.value)? "
)


def receive_all(listener: socket.socket, buffer: list[bytes]) -> None:
    """Receive the data of one connection until it ends."""
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            buffer.append(data)


def osd(listener: socket.socket) -> None:
    """Answer the commands of collectd as an OSD does."""
    answers: dict[str, Any] = json.loads((HERE.parent / "ceph/osd.json").read_text())
    while True:
        connection, _ = listener.accept()
        with connection:
            command = json.loads(connection.recv(1000).rstrip(b"\0\n"))["prefix"]
            if command == "0":
                connection.sendall((1).to_bytes(4, "big"))
                continue
            answer = json.dumps(answers["perf schema" if command == "2" else "perf dump"]).encode()
            connection.sendall(len(answer).to_bytes(4, "big") + answer)
            if command == "1":
                for counters in answers["perf dump"].values():
                    for name, value in counters.items():
                        if isinstance(value, dict):
                            value["avgcount"] += 8
                            value["sum"] += 0.25
                        else:
                            counters[name] = value + 8


def record(seconds: float) -> dict[str, bytes]:
    """Return the lines of each format."""
    lines: dict[str, list[bytes]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory() as directory:
        admin = socket.socket(socket.AF_UNIX)
        admin.bind(f"{directory}/osd.asok")
        admin.listen()
        threading.Thread(target=osd, args=(admin,), daemon=True).start()
        settings = [
            'Hostname "node.a"\nFQDNLookup false\nInterval 1',
            f'BaseDir "{directory}"\nPIDFile "{directory}/pid"',
            'PluginDir "/usr/lib/collectd"\nTypesDB "/usr/share/collectd/types.db"',
            *(f"LoadPlugin {name}" for name in PLUGINS),
            f'<Plugin ceph>\n<Daemon "osd.0">\nSocketPath "{directory}/osd.asok"\n</Daemon>\n</Plugin>',
            "<Plugin write_graphite>",
        ]
        receivers = []
        for form, options in FORMS.items():
            listener = socket.create_server(("127.0.0.1", 0))
            receivers.append(threading.Thread(target=receive_all, args=(listener, lines[form])))
            port = listener.getsockname()[1]
            destination = f'Host "127.0.0.1"\nPort "{port}"\nProtocol "tcp"'
            settings.append(f'<Node "{form}">\n{destination}\n{options}\n</Node>')
        config = Path(directory) / "conf"
        config.write_text("\n".join([*settings, "</Plugin>", ""]))
        for receiver in receivers:
            receiver.start()
        with subprocess.Popen(["collectd", "-f", "-C", str(config)]) as collectd:
            time.sleep(seconds)
            collectd.terminate()
        for receiver in receivers:
            receiver.join()
    return {form: b"".join(parts) for form, parts in lines.items()}


if __name__ == "__main__":
    for form, data in record(float(sys.argv[1])).items():
        lines = [
            line for line in data.decode().replace("\r", "").splitlines() if SELECTED.match(line)
        ]
        lines.sort(key=lambda line: line.split()[::-2])
        (HERE / f"{form}.txt").write_text("\n".join(lines) + "\n")
