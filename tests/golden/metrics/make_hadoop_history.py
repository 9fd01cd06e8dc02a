"""Write small job histories of Hadoop 3.4.2, in a separate network namespace:

    unshare -n sh -c 'ip link set lo up; python make_hadoop_history.py OUT'

HDFS and YARN on one host (`studies/hadoop/configured.py`), two containers at a time: a word count of five
maps and two reduces that succeeds (`hadoop.jhist`), and one whose maps have too little memory to start
(`hadoop-failed.jhist`).
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "studies" / "hadoop"))

from configured import MAINS, RESOURCES_PORT, configure, environment, java, of_daemon
from terasort import EXAMPLES, HISTORY, SHELL, Client

out = Path(sys.argv[1]).resolve()
out.mkdir(parents=True)
home, address = out / "home", "127.0.0.1"
client = Client(home, address, yarn=True)
daemons = []
try:
    for index, kind in enumerate(("name", "data", "resources", "tasks")):
        disk = out / kind
        disk.mkdir()
        properties = of_daemon(kind, address, disk, index, home)
        if kind == "tasks":
            properties["yarn.nodemanager.resource.memory-mb"] = "1536"
        name = "conf" if kind == "tasks" else f"conf-{kind}"
        conf = configure(home / name, home, address, properties, yarn=True, lib=client.lib)
        if kind == "name":
            client.run(MAINS["name"], "-format", "-force", "-nonInteractive", conf=conf)
        with open(out / f"{kind}.log", "wb") as log:
            argv = java(conf, home, client.lib, MAINS[kind])
            daemon = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )
        daemons.append(daemon)
    client.wait_for_data(1, *(daemon.pid for daemon in daemons))
    bean = "Hadoop:service=ResourceManager,name=ClusterMetrics"
    client.wait(RESOURCES_PORT, bean, "NumActiveNMs", 1)
    texts = out / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}").write_text("a b c penstock\n" * 2000)
    client.run(SHELL, "-put", str(texts), "/in")
    client.run(EXAMPLES, "wordcount", "-Dmapreduce.job.reduces=2", "/in", "/out")
    low_memory = ("-Dmapreduce.map.java.opts=-Xmx2m", "-Dmapreduce.map.maxattempts=2")
    try:
        client.run(EXAMPLES, "wordcount", *low_memory, "/in/0", "/out2")
    except RuntimeError:
        print("the second job failed, as it should")
    client.run(SHELL, "-get", HISTORY, str(out))
finally:
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        daemon.wait()
