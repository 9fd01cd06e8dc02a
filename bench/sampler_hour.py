"""The sampler for an hour at one sample per second: missed samples, lateness, cost.

It reads the host (processors, memory, network, disks, pressure) during any other load. Its share of a core is
measured in twelve successive windows. Planted failure: a sampler that is stopped for three and a half
seconds, whose missed samples it must count. Exit status 1 if a goal is missed or the planted failure is not
detected. `--quick`: a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.sampler import MOST_AT_1_S, SECOND_NS, missed_when_stopped, windows
from penstock.host.journal.journal import Journal
from penstock.observe.sampler.monitor import Monitor

WINDOWS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600, help="duration (default: 3600)")
    parser.add_argument("--quick", action="store_true", help="a minute instead of an hour")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    seconds = 60 if arguments.quick else arguments.seconds
    with tempfile.TemporaryDirectory(prefix="penstock-sampler-") as scratch:
        place = Path(scratch)
        os.environ["PENSTOCK_STATE"] = str(place / "state")
        with Monitor(Journal(), place, SECOND_NS) as monitor:
            monitor.start(None, None, place)
            assert monitor._daemon is not None
            shares = windows({"penstock": monitor._daemon.pid}, WINDOWS, seconds / WINDOWS)
            receipt = monitor.stop().receipt
            stopped = missed_when_stopped(monitor, place, 1.5, 3.5)
    case = f"this host, every second for {seconds} s"
    lasted = (receipt["end_ns"] - receipt["start_ns"]) / SECOND_NS
    off = abs(receipt["samples"] + receipt["missed"] - lasted)
    rows = [
        record.at_most(
            record.row(
                case, "penstock", f"missed of {receipt['expected']}", [receipt["missed"]], ""
            ),
            0,
        ),
        record.at_most(
            record.row(case, "penstock", "samples off one for each second", [off], ""), 1
        ),
        record.row(case, "penstock", "late, 99th percentile", [receipt["late_p99_ns"] / 1e6], "ms"),
        record.at_most(
            record.row(case, "penstock", "processor time", shares["penstock"], "% of a core"),
            MOST_AT_1_S,
        ),
    ]
    # three or four were due in the meantime; the last of them is taken late, when the sampler continues
    planted = {"three and a half seconds in which the sampler was stopped": 2 <= stopped <= 4}
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
