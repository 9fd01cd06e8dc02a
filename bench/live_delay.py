"""Delay from a sample to its display on the live page, and the cost for the server.

A separate server, and its page in Chromium; samples are those of the server's sampler, once a second after
the first ten seconds. When the page shows a newer sample, it writes the times of the sample and of its
display into its document, where an observer collects both. A sample counts as shown with the first such pair
whose sample is not older; all times are from the clock of one host. The server's processor time is measured
with one open page. Planted failure: the server is stopped for three seconds, which must appear as a delay
above the goal. Exit status 1 if a goal is missed or the planted failure is not detected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.observe.sampler.samples import SAMPLE_DTYPE

BAR_S = 2.0
#: limit of the server's share of a core, with one open page
MOST_SHARE = 0.05
STOPPED_S = 3.0
BEGINNING_S = 11.0
TOKEN = "a-token-of-the-bench-alone"
OBSERVE = """
() => {
  window.seen = [];
  const time = document.getElementById("sampled");
  new MutationObserver(() => {
    const pair = [time.dataset.tNs, Number(time.dataset.utcMs), Number(time.dataset.shownMs)];
    const last = window.seen[window.seen.length - 1];
    if (pair[2] && (!last || last[0] !== pair[0])) window.seen.push(pair);
  }).observe(time, { attributes: true });
}
"""


def server(place: Path) -> tuple[subprocess.Popen[str], str]:
    """A server with its own state, and its address."""
    token = place / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(place / "state"),
        "PENSTOCK_RUNTIME": str(place / "run"),
    }
    options = ["serve", "--port", "0", "--token-file", str(token)]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip().rstrip("/")


def processor_s(pid: int) -> float:
    """Processor time of a process so far [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sample_times(place: Path, from_ns: int, to_ns: int) -> Any:
    """Times of the samples of the server's own sampler."""
    times_by_file = []
    for spool in place.glob("run/live-use-*/*/samples.spool"):
        count = spool.stat().st_size // SAMPLE_DTYPE.itemsize
        times_by_file.append(np.unique(np.fromfile(spool, SAMPLE_DTYPE, count)["t_ns"]))
    times = np.concatenate(times_by_file) if times_by_file else np.zeros(0, np.int64)
    return times[(times >= from_ns) & (times <= to_ns)]


def delays_s(times: Any, seen: list[list[Any]], shift_ms: float) -> Any:
    """Delay of each sample until the first pair with it or a later one; samples that were never shown are
    omitted.
    """
    shown_ns = np.array([int(t) for t, _, _ in seen], np.int64)
    shown_ms = np.array([shown for _, _, shown in seen])
    at = np.searchsorted(shown_ns, times)
    was_shown = at < len(shown_ns)
    return (shown_ms[at[was_shown]] - (times[was_shown] / 1e6 + shift_ms)) / 1e3


def watch(
    page: Any, place: Path, length_s: float, pid: int, *, plant: bool
) -> tuple[Any, int, float]:
    """Delays of the samples of a period, their number, and the server's share of a core."""
    page.evaluate(OBSERVE)
    from_ns, before = time.monotonic_ns(), processor_s(pid)
    if plant:
        time.sleep(1.0)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(pid, signal.SIGCONT)
    time.sleep(length_s)
    to_ns = time.monotonic_ns()
    share = (processor_s(pid) - before) / ((to_ns - from_ns) / 1e9)
    time.sleep(2 * BAR_S)
    shift_ms = (time.time_ns() - time.monotonic_ns()) / 1e6
    times = sample_times(place, from_ns, to_ns)
    return delays_s(times, page.evaluate("window.seen"), shift_ms), len(times), share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 s instead of 120")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    length_s = 20.0 if arguments.quick else 120.0
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        parser.error("found no chromium; expected Debian's")
    with tempfile.TemporaryDirectory(prefix="penstock-live-") as scratch:
        place = Path(scratch)
        process, url = server(place)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=program, args=["--no-sandbox", "--disable-gpu"]
                )
                page = browser.new_page()
                page.goto(f"{url}/live#token={TOKEN}")
                while not page.evaluate("document.getElementById('sampled').dataset.utcMs"):
                    time.sleep(0.1)
                time.sleep(BEGINNING_S)
                delays, expected, share = watch(page, place, length_s, process.pid, plant=False)
                late, _, _ = watch(page, place, 5.0, process.pid, plant=True)
                browser.close()
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)
    case = f"one page, {length_s:g} s"
    quantiles = [float(np.quantile(delays, q)) for q in (0.5, 0.99)] if len(delays) else [9e9, 9e9]
    longest = float(delays.max()) if len(delays) else 9e9
    rows = [
        record.share(case, "penstock", "samples shown", len(delays), expected),
        record.at_most(record.row(case, "penstock", "longest delay", [longest], "s"), BAR_S),
        record.row(case, "penstock", "median delay", [quantiles[0]], "s"),
        record.row(case, "penstock", "99th percentile of delays", [quantiles[1]], "s"),
        record.at_most(
            record.row(case, "penstock", "server's share of a core", [100 * share], "%"),
            100 * MOST_SHARE,
        ),
    ]
    planted = {"the server stopped for three seconds": bool(len(late) and late.max() > BAR_S)}
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
