"""Studies with a planted truth and their expected answers: choice, cause and confidence.

`python -m tests.unit.answered_studies` writes the answers to tests/golden/answers/.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.campaign.analysis import Analysis, analyse
from tests.unit.planted_study import Doings, Levels, Planted

GOLDEN = Path(__file__).parents[1] / "golden" / "answers"
DISKS = ("hdd-7200", "network-volume", "sata-ssd")


@dataclass(frozen=True)
class Case:
    """A study and its truth.

    `best`: levels of the truly best treatments, which must be recommended; None without a
    difference. `why` must be in the statement of the cause, `not_why` must not. `first`: beginning
    of the answer. `sure`: true if the answer may be certain. `says`, `never`: phrases of the
    complete answer.
    """

    study: Planted
    best: Mapping[str, str] | None
    first: str
    why: tuple[str, ...] = ()
    not_why: tuple[str, ...] = ()
    sure: bool = True
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def _disks(levels: Levels) -> Doings:
    flushes_s = {"hdd-7200": 14.0, "network-volume": 6.0, "sata-ssd": 0.5}[levels["disk"]]
    writes = ("log", "write", "consecutive", 600, 4096, 0.05)
    return Doings(flushes_s + 2, 1.8, 300, flushes_s, (writes,), disk_busy_s=flushes_s)


def _journal(levels: Levels) -> Doings:
    each = {"hdd-7200": 0.04, "network-volume": 0.02, "sata-ssd": 0.0005}[levels["disk"]]
    count = 600 if levels["journal"] == "delete" else 200
    writes = ("t.db", "write", "irregular", 5000, 4096, 0.2)
    return Doings(count * each + 4, 3.5, count, count * each, (writes,), disk_busy_s=count * each)


def _commit(levels: Levels) -> Doings:
    seconds = {"off": 0.0, "normal": 3.0, "full": 27.0}[levels["synchronous"]]
    return Doings(
        seconds + 3,
        2.7,
        int(seconds * 100),
        seconds,
        (("t.db", "write", "irregular", 9000, 4096, 0.2),),
    )


def _cache(levels: Levels) -> Doings:
    calls = {"100B": 4_000_000, "64KiB": 6_000}[levels["buffer"]]
    nbytes = {"100B": 100, "64KiB": 65536}[levels["buffer"]]
    seconds = {"100B": 7.0, "64KiB": 0.5}[levels["buffer"]]
    reads = ("words.txt", "read", "consecutive", calls, nbytes, seconds)
    return Doings(seconds + 1, seconds + 0.9, 0, 0, (reads,))


def _index(levels: Levels) -> Doings:
    if levels["heap"] == "clustered":
        return Doings(3, 2.6, 0, 0, (("heap", "read", "consecutive", 8000, 8192, 0.2),))
    slow = 0.008 if levels["disk"] == "hdd-7200" else 0.0002
    return Doings(
        8000 * slow + 3, 2.6, 0, 0, (("heap", "read", "random", 8000, 8192, 8000 * slow),)
    )


def _hidden(levels: Levels) -> Doings:
    flushes_s = {"hdd-7200": 4.5, "network-volume": 2.0, "sata-ssd": 0.1}[levels["disk"]]
    return Doings(flushes_s + 5.2, 5.2, 450, flushes_s, disk_busy_s=flushes_s)


def _link(levels: Levels) -> Doings:
    rate = 12e6 if levels["link"] == "100Mbit" else 60e6
    link = 12.5e6 if levels["link"] == "100Mbit" else 125e6
    return Doings(
        12, 2.0, 0, 0, (("part", "write", "consecutive", 5000, 65536, 0.3),), network=(rate, link)
    )


def _sleeper(levels: Levels) -> Doings:
    return Doings(
        10 * int(levels["workers"]), 2.0, 0, 0, (("f", "read", "consecutive", 500, 4096, 0.01),)
    )


def _compared(
    question: str,
    first: str,
    replicates: int = 3,
    failed_order: Callable[[int], bool] = lambda _: False,
    says: tuple[str, ...] = (),
    never: tuple[str, ...] = (),
) -> Case:
    """A comparison of two engines; `btree` is faster."""
    return Case(
        Planted(
            question,
            {"engine": ["lsm", "btree"]},
            lambda v: {"rate": 1300.0 if v["engine"] == "btree" else 1000.0},
            {"rate": ("1/s", "higher")},
            replicates=replicates,
            failed_order=failed_order,
        ),
        {"engine": "btree"},
        first,
        says=says,
        never=never,
    )


def _compression(
    question: str, first: str, says: tuple[str, ...] = (), never: tuple[str, ...] = ()
) -> Case:
    """A quarter fraction of five factors; only `compress` has an effect."""
    return Case(
        Planted(
            question,
            {
                "journal": ["delete", "wal"],
                "cache": ["1GiB", "4GiB"],
                "disk": ["hdd", "ssd"],
                "compress": ["off", "lz4"],
                "scheduler": ["bfq", "kyber"],
            },
            lambda v: {"latency": 8.0 * (1.35 if v["compress"] == "lz4" else 1)},
            {"latency": ("ms", "lower")},
            fraction=2,
        ),
        {"compress": "off"},
        first,
        says=says,
        never=never,
    )


CASES: dict[str, Case] = {
    "one-factor-of-three-levels": Case(
        Planted(
            "Which of three disks is the fastest for this program?",
            {"disk": list(DISKS)},
            lambda v: {"load": 3e5 / _disks(v).wall_s},
            {"load": ("rows/s", "higher")},
            doings=_disks,
        ),
        {"disk": "sata-ssd"},
        "Choose sata-ssd: load is ",
        (
            "with hdd-7200 the program spends 88 % of the run waiting for 300 flushes of 46.7 ms each",
            "with sata-ssd, 20 % (300 flushes of 1.67 ms each)",
        ),
        says=("3.2× (3.1–3.3) that of the next best, network-volume",),
        never=("Yes", "variation"),
    ),
    "two-by-three-with-interaction": Case(
        Planted(
            "Which disk and journal should this SQLite program have?",
            {"disk": list(DISKS), "journal": ["wal", "delete"]},
            lambda v: {"load": 1e5 / _journal(v).wall_s},
            {"load": ("rows/s", "higher")},
            doings=_journal,
        ),
        {"disk": "sata-ssd", "journal": "wal"},
        "Choose sata-ssd + wal: load is ",
        ("spends 67 % of the run waiting for 200 flushes", "sata-ssd + wal, 2 % (200 flushes of"),
        says=(
            "Main factor: disk: 79 % of the variation in load",
            "delete instead of wal divides load by 2.4 with hdd-7200, and lowers it by 5 % with sata-ssd.",
        ),
    ),
    "responses-that-conflict": Case(
        Planted(
            "How should the cache be sized?",
            {"cache": ["1GiB", "4GiB", "16GiB"]},
            lambda v: {
                "throughput": {"1GiB": 1000.0, "4GiB": 3000.0, "16GiB": 3600.0}[v["cache"]],
                "price": {"1GiB": 1.0, "4GiB": 1.4, "16GiB": 6.0}[v["cache"]],
                "restart": {"1GiB": 2.0, "4GiB": 3.0, "16GiB": 20.0}[v["cache"]],
            },
            {"throughput": ("1/s", "higher"), "price": ("EUR", "lower"), "restart": ("s", "lower")},
        ),
        {"cache": "16GiB"},
        "For throughput alone, choose 16GiB cache: 3,5",
        says=(
            "Cost: with 16GiB cache, price is 5.95 EUR, 6.0× the lowest (0.995 EUR with 1GiB cache); ",
            "restart is 19.7 s",
            "4GiB cache, if all responses count alike: throughput 14 % below",
            "the cause: these runs were not traced (add `trace: {mode: trace}` under",
        ),
    ),
    "a-tie-that-another-response-decides": Case(
        Planted(
            "Which journal should it be?",
            {"journal": ["wal", "delete"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "load": 100.0 if v["disk"] == "hdd-7200" else 900.0,
                "lookup": (40.0 if v["disk"] == "hdd-7200" else 400.0)
                * (3 if v["journal"] == "delete" else 1),
            },
            {"load": ("rows/s", "higher"), "lookup": ("lookups/s", "higher")},
        ),
        {"journal": "delete", "disk": "sata-ssd"},
        "Choose delete + sata-ssd: load is 889 rows/s (837–944), the same as with wal (within 2 %); lookup",
        says=(
            "with sata-ssd, wal and delete are equally good",
            "that of wal. Clear.",
        ),
        never=("wal is best", "100 %", "next best", "9.0×"),
    ),
    "a-tie-of-all-that-another-response-decides": Case(
        Planted(
            "Which journal should it be?",
            {"journal": ["wal", "delete"]},
            lambda v: {"load": 900.0, "lookup": 1200.0 if v["journal"] == "delete" else 400.0},
            {"load": ("rows/s", "higher"), "lookup": ("lookups/s", "higher")},
            noise=0.01,
        ),
        {"journal": "delete"},
        "Choose delete for its lookup: load is the same with both (within ",
        says=("of the 2 that are equal, delete is better for lookup: 1,",),
        never=("no difference",),
    ),
    "several-that-cannot-be-told-from-the-best": Case(
        Planted(
            "Which setting is the fastest?",
            {"cache": ["1GiB", "4GiB"], "threads": ["4", "16"], "batch": ["10", "50"]},
            lambda v: {
                "ops": 1000.0
                * (2 if v["cache"] == "4GiB" else 1)
                * (1.04 if (v["threads"] == "16") == (v["batch"] == "50") else 1)
                * (1.3 if v["batch"] == "50" or v["threads"] == "16" else 1)
            },
            {"ops": ("operations/s", "higher")},
            noise=0.04,
        ),
        {"cache": "4GiB"},
        "Choose 4GiB cache + 16 threads + batch 50: ops is 2,",
        says=(", the highest; 2 others cannot be distinguished from it. Likely.",),
        never=("next best", "Clear"),
    ),
    "which-of-one-factor-beside-another": Case(
        Planted(
            "Which journal should it be?",
            {"journal": ["wal", "delete"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "load": (700.0 if v["disk"] == "hdd-7200" else 900.0)
                / (3 if v["journal"] == "delete" else 1)
            },
            {"load": ("rows/s", "higher")},
        ),
        {"journal": "wal", "disk": "sata-ssd"},
        "Choose wal + sata-ssd: load is 9",
        says=("3.1× (2.9–3.2) that of delete + sata-ssd. Clear.",),
        never=("next best",),
    ),
    "nothing-significant": Case(
        Planted(
            "Which scheduler is best?",
            {"scheduler": ["none", "mq-deadline", "bfq"]},
            lambda _: {"throughput": 500.0},
            noise=0.15,
        ),
        None,
        "Open: no treatment is shown to be the best: throughput is 477/s (scheduler none) to 507/s (mq",
        sure=False,
        says=(
            "differences of up to 44 % are possible",
            "would resolve a difference of 20 %; one of 10 % needs ",
        ),
        never=("Unknown",),
    ),
    "whether-it-matters-and-nothing-tells": Case(
        Planted(
            "Does the scheduler matter?",
            {"scheduler": ["none", "mq-deadline", "bfq"]},
            lambda _: {"throughput": 500.0},
            noise=0.15,
        ),
        None,
        "Open: throughput with scheduler none (477/s) and with mq-deadline (507/s) cannot be distinguished",
        sure=False,
        says=("differences of up to 42 % are possible",),
        never=("Yes", "no treatment is shown"),
    ),
    "whether-it-matters-somewhere-and-nothing-tells": Case(
        Planted(
            "Does read-ahead help?",
            {"read_ahead": ["off", "on"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {"rate": 100.0 if v["disk"] == "hdd-7200" else 500.0},
            {"rate": ("MiB/s", "higher")},
            noise=0.15,
        ),
        {"disk": "sata-ssd"},
        "Open: rate with read ahead on and with read ahead off cannot be distinguished in any combination",
        says=("differences of up to 54 % are possible",),
        never=("Yes", "reduces"),
    ),
    "whether-it-costs-and-it-is-little": Case(
        Planted(
            "Does checking sums cost anything?",
            {"sums": ["off", "on"]},
            lambda v: {"rate": 1000.0 if v["sums"] == "off" else 930.0},
            {"rate": ("MiB/s", "higher")},
            noise=0.02,
        ),
        {"sums": "off"},
        "A little: sums on instead of sums off lowers rate by 7 % (4–10 %): ",
        never=("Yes", "No:"),
    ),
    "whether-it-helps-by-single-runs": Case(
        Planted(
            "Does WAL help?",
            {"journal": ["delete", "wal"]},
            lambda v: {"load": 1500.0 if v["journal"] == "wal" else 420.0},
            {"load": ("rows/s", "higher")},
            replicates=1,
        ),
        {"journal": "wal"},
        "Open: wal instead of delete multiplies load by 3.",
        sure=False,
        says=("single runs give no interval", "repeats each treatment"),
        never=("Best",),
    ),
    "all-runs-of-a-level-failed": Case(
        Planted(
            "Which of three disks is the fastest?",
            {"disk": list(DISKS)},
            lambda v: {"load": 3e5 / _disks(v).wall_s},
            {"load": ("rows/s", "higher")},
            failed=lambda v: v["disk"] == "network-volume",
            doings=_disks,
        ),
        {"disk": "sata-ssd"},
        "Choose sata-ssd (best of the 2 of 3 treatments with a valid run): load is ",
        ("waiting for 300 flushes",),
        sure=False,
        says=(
            "Unknown: network-volume: no run of it is valid",
            "Runs: 3 of 9 planned runs failed (the workload ended with status 1)",
            "(all 3 runs failed alike)",
        ),
        never=("Clear",),
    ),
    "most-runs-failed": _compared(
        "Is the B-tree faster than the LSM tree?",
        "Yes: btree is 1.3× (",
        replicates=6,
        failed_order=lambda order: order % 3 > 0,
        says=(
            "Likely.",
            "Runs: 8 of 12 planned runs failed (the workload ended with status 1); ",
            "the others may be a biased selection.",
            "Next step: read `OUT/runs/r001/stderr.txt` first (all 8 runs failed alike); `penstock run",
        ),
        never=("Clear",),
    ),
    "one-level-alone-worked": Case(
        Planted(
            "Which engine is the fastest?",
            {"engine": ["btree", "lsm"]},
            lambda _: {"ops": 1000.0, "p99": 3.0},
            {"ops": ("operations/s", "higher"), "p99": ("ms", "lower")},
            failed=lambda v: v["engine"] == "lsm",
        ),
        {"engine": "btree"},
        "Open: only btree was measured; nothing can be compared: ops is ",
        sure=False,
        says=("and p99 is 2.99 ms", "lsm: no run of it is valid"),
    ),
    "processor-bound": Case(
        Planted(
            "Does the disk matter to this compression?",
            {"disk": ["hdd-7200", "sata-ssd"]},
            lambda _: {"rate": 80.0},
            {"rate": ("MiB/s", "higher")},
            noise=0.005,
            doings=lambda _: Doings(
                20, 19.6, 0, 0, (("in", "read", "consecutive", 900, 131072, 0.1),)
            ),
        ),
        None,
        "No: rate is the same with hdd-7200 as with sata-ssd, within 1 % (79.8 MiB/s against ",
        ("with hdd-7200 the program computes for 98 % of the run; with sata-ssd, as much (98 %)",),
        ("flush",),
        never=("It makes no difference which is chosen",),
    ),
    "flush-bound": Case(
        Planted(
            "How much does synchronous cost?",
            {"synchronous": ["off", "normal", "full"]},
            lambda v: {"wait": _commit(v).wall_s},
            {"wait": ("s", "lower")},
            doings=_commit,
        ),
        {"synchronous": "off"},
        "synchronous full instead of synchronous off multiplies wait by 10 (9.63–10.4): 29.9 s",
        ("with synchronous full the program spends 90 % of the run waiting for 2,700 flushes of",),
        says=(
            "Best: synchronous off: wait is 2.",
            "Cost: with synchronous off a run never flushes",
        ),
        never=("Yes", "No:", "The best is"),
    ),
    "cache-bound": Case(
        Planted(
            "Which buffer should the reader have?",
            {"buffer": ["100B", "64KiB"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {"time": _cache(v).wall_s},
            {"time": ("s", "lower")},
            noise=0.01,
            doings=_cache,
        ),
        {"buffer": "64KiB"},
        "Choose 64KiB buffer: time is ",
        (
            "4,000,000 reads of 100 B each from words.txt, none waiting for a disk",
            "(6,000 reads of 64 KiB each from words.txt, none waiting for a disk)",
        ),
        ("flush",),
        says=(
            "No effect: with 64KiB buffer, sata-ssd and hdd-7200",
            "more than 99 % of the variation",
        ),
    ),
    "network-bound": Case(
        Planted(
            "Which link does the copy need?",
            {"link": ["100Mbit", "1Gbit"]},
            lambda v: {"rate": 11.4 if v["link"] == "100Mbit" else 57.0},
            {"rate": ("MiB/s", "higher")},
            doings=_link,
        ),
        {"link": "1Gbit"},
        "Choose 1Gbit link: rate is ",
        ("with 100Mbit link the program uses 96 % of the link node1.net; with 1Gbit link, 48 %",),
        ("flush",),
        says=("Unknown: what limits the program with 1Gbit link",),
    ),
    "counts-without-a-unit": Case(
        Planted(
            "Which retry policy loses least?",
            {"policy": ["none", "linear", "backoff"]},
            lambda v: {"lost": {"none": 40.0, "linear": 6.0, "backoff": 0.0}[v["policy"]]},
            {"lost": ("requests", "lower")},
        ),
        {"policy": "backoff"},
        "Choose backoff: lost is 0 requests (0–0.214), against 6.00 requests with the next best, linear.",
        never=("nan", "inf", "×", "Unknown"),
    ),
    "a-number-as-a-factor": Case(
        Planted(
            "How much does n cost?",
            {"n": ["300", "600"]},
            lambda v: {"time": int(v["n"]) / 100},
            {"time": ("s", "lower")},
        ),
        {"n": "300"},
        "n = 600 instead of n = 300 multiplies time by 2.0 (1.94–2.06): 5.",
        never=("600 n", "left with .", "The best is", "Best"),
    ),
    "whether-it-costs": Case(
        Planted(
            "Does random access cost anything, and what removes the cost?",
            {"pattern": ["sequential", "random"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "bandwidth": {
                    ("sequential", "hdd-7200"): 40.0,
                    ("random", "hdd-7200"): 0.5,
                    ("sequential", "sata-ssd"): 120.0,
                    ("random", "sata-ssd"): 118.0,
                }[(v["pattern"], v["disk"])]
            },
            {"bandwidth": ("MiB/s", "higher")},
            noise=0.01,
        ),
        {"disk": "sata-ssd"},
        "Yes: random instead of sequential divides bandwidth by 80 (78.7–81.9) with hdd-7200, and lowers it",
        says=("Remedy: sata-ssd reduces it to 1.1× or less",),
    ),
    "whether-it-costs-and-helps-a-little": Case(
        Planted(
            "Does random access cost anything, and what removes the cost?",
            {"pattern": ["sequential", "random"], "jobs": ["1", "16"]},
            lambda v: {
                "bandwidth": {
                    ("sequential", "1"): 90.0,
                    ("random", "1"): 1.0,
                    ("sequential", "16"): 80.0,
                    ("random", "16"): 88.0,
                }[(v["pattern"], v["jobs"])]
            },
            {"bandwidth": ("MiB/s", "higher")},
        ),
        {"pattern": "sequential", "jobs": "1"},
        "Yes: with 1 job random is 91× (87.2–94.2) slower than sequential",
        says=("and with 16 jobs 8 % (4–12 %) faster. Clear.",),
    ),
    "whether-it-helps": Case(
        Planted(
            "Does WAL help?",
            {"journal": ["delete", "wal"]},
            lambda v: {"load": 1500.0 if v["journal"] == "wal" else 420.0},
            {"load": ("rows/s", "higher")},
        ),
        {"journal": "wal"},
        "Yes: wal instead of delete multiplies load by 3.",
        never=("Best",),
    ),
    "whether-it-helps-and-it-does-not": Case(
        Planted(
            "Does compression pay?",
            {"compression": ["off", "on"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "load": (100.0 if v["disk"] == "hdd-7200" else 900.0)
                / (2 if v["compression"] == "on" else 1)
            },
            {"load": ("rows/s", "higher")},
        ),
        {"disk": "sata-ssd", "compression": "off"},
        "No: compression on instead of compression off divides load by 2.0 (1.94–2.12), much the same",
        says=(
            "no tested setting removes it; it is smallest with hdd-7200, 2.0×",
            "disk: 91 % of the variation in load",
        ),
    ),
    "whether-it-helps-and-it-depends": Case(
        Planted(
            "Does the log help?",
            {"layout": ["tree", "log"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "time": {
                    ("tree", "hdd-7200"): 30.0,
                    ("log", "hdd-7200"): 20.0,
                    ("tree", "sata-ssd"): 10.0,
                    ("log", "sata-ssd"): 15.0,
                }[(v["layout"], v["disk"])]
            },
            {"time": ("s", "lower")},
        ),
        {"layout": "tree", "disk": "sata-ssd"},
        "It depends: with hdd-7200 log ",
        says=(
            "with hdd-7200 log is 1.5× (1.45–1.57) faster than tree, and with sata-ssd 1.5× (1.42–1.53) "
            "slower. Clear.",
        ),
        never=("geometric mean", "Yes"),
    ),
    "whether-the-first-is-faster": _compared(
        "Is the B-tree faster than the LSM tree?",
        "Yes: btree is 1.3× (",
        says=("as fast as lsm: rate 1,29", "/s against 99"),
    ),
    "whether-the-second-is-faster": _compared(
        "Is the LSM tree faster than the B-tree?", "No: btree is 1.3× ("
    ),
    "whether-the-first-is-slower": _compared("Is btree slower than lsm?", "No: btree is 1.3× ("),
    "whether-the-second-is-slower": _compared("Is lsm slower than btree?", "Yes: btree is 1.3× ("),
    "whether-neither-is-named": _compared(
        "Is the new engine better than the old one?", "btree is 1.3× (", never=("Yes", "No:")
    ),
    "whether-a-disk-is-faster-by-part-of-its-name": Case(
        Planted(
            "Is an SSD faster than a hard disk?",
            {"disk": ["hdd-7200", "sata-ssd"], "journal": ["wal", "delete"]},
            lambda v: {
                "time": (9.0 if v["disk"] == "hdd-7200" else 3.0)
                * (1.3 if v["journal"] == "delete" else 1)
            },
            {"time": ("s", "lower")},
        ),
        {"disk": "sata-ssd", "journal": "wal"},
        "Yes: sata-ssd is 3.0× (",
        says=("as fast as hdd-7200, much the same in both combinations. Clear.",),
    ),
    "how-much-by-a-fraction": _compression(
        "How much does compress cost?",
        "lz4 instead of compress off multiplies latency by 1.3 (1.3",
        says=(
            " on average over 8 treatments. Likely.",
            "cannot separate compress from",
            "separates the two",
        ),
        never=("Yes",),
    ),
    "whether-it-helps-by-a-fraction": _compression(
        "Does compression help?", "No: lz4 instead of compress off multiplies latency by 1.3 (1.3"
    ),
    "whether-it-helps-by-the-factor": Case(
        Planted(
            "Does compression help?",
            {"compress": ["off", "lz4"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {
                "load": (100.0 if v["disk"] == "hdd-7200" else 900.0)
                * (2 if v["compress"] == "lz4" else 1)
            },
            {"load": ("rows/s", "higher")},
        ),
        {"disk": "sata-ssd", "compress": "lz4"},
        "Yes: lz4 instead of compress off multiplies load by 2.0 (",
    ),
    "how-much": Case(
        Planted(
            "How much does the disk cost PostgreSQL's transactions, and does memory make up for it?",
            {"disk": ["hdd-7200", "sata-ssd"], "memory": ["96MiB", "512MiB"]},
            lambda v: {
                "tps": (60.0 if v["disk"] == "hdd-7200" else 600.0)
                * (1.5 if v["memory"] == "512MiB" else 1)
            },
            {"tps": ("1/s", "higher")},
        ),
        {"disk": "sata-ssd", "memory": "512MiB"},
        "hdd-7200 instead of sata-ssd divides tps by 9.9 (9.44–10.3), much the same in both combinations",
        says=("Remedy: no tested setting removes it; it is smallest with 512MiB memory, 9.8×",),
        never=("Yes",),
    ),
    "slow-settings-are-no-remedy": Case(
        Planted(
            "How much does the disk cost the order book, and what removes that?",
            {"disk": ["hdd-7200", "sata-ssd"], "sync": ["FULL", "NORMAL"], "batch": ["1", "20"]},
            lambda v: {
                "orders": 7.0
                if v["disk"] == "hdd-7200"
                else 50.0 * (10 if v["batch"] == "20" else 1) * (2 if v["sync"] == "NORMAL" else 1)
            },
            {"orders": ("orders/s", "higher")},
        ),
        {"disk": "sata-ssd", "sync": "NORMAL", "batch": "20"},
        "hdd-7200 instead of sata-ssd divides orders by up to 140 (138–148) with",
        says=(
            "no tested setting removes it; it is smaller with batch 1 (10× on average) only because sata-ssd "
            "is worse there.",
        ),
        never=("reduces",),
    ),
    "one-run-of-each": Case(
        Planted(
            "Which disk and how many jobs?",
            {"disk": list(DISKS), "jobs": ["1", "8"]},
            lambda v: {
                "rate": (1 + DISKS.index(v["disk"])) * 100.0 * (2 if v["jobs"] == "8" else 1)
            },
            {"rate": ("MiB/s", "higher")},
            replicates=1,
        ),
        {"disk": "sata-ssd", "jobs": "8"},
        "Open: one run of each treatment gives no interval; rate was highest with sata-ssd + 8 jobs (588",
        sure=False,
        says=("repeats each treatment",),
    ),
    "the-same-twice": Case(
        Planted(
            "Does the name of the directory matter?",
            {"directory": ["a", "b"]},
            lambda _: {"rate": 5000.0},
            {"rate": ("1/s", "higher")},
            noise=0.004,
            replicates=5,
        ),
        None,
        "No: rate is the same with directory b as with directory a, within 1 %",
        never=("It makes no difference which is chosen",),
    ),
    "many-treatments": Case(
        Planted(
            "Which setting of the store is the fastest?",
            {
                "engine": ["btree", "lsm"],
                "compaction": ["level", "size"],
                "cache": ["64MiB", "1GiB"],
                "threads": ["1", "16"],
            },
            lambda v: {
                "ops": 1000.0
                * (3 if v["engine"] == "lsm" else 1)
                * (1.3 if v["cache"] == "1GiB" else 1)
                * (4 if v["threads"] == "16" else 1)
            },
            {"ops": ("operations/s", "higher")},
            noise=0.01,
        ),
        {"engine": "lsm", "cache": "1GiB", "threads": "16"},
        "Choose lsm + 1GiB cache + 16 threads: ops is 15,",
        says=(
            "level and size are equally good",
            "Main factor: threads: 60 % of the variation in ops",
        ),
    ),
    "flushes-behind-much-computing": Case(
        Planted(
            "Which disk should the importer have?",
            {"disk": list(DISKS)},
            lambda v: {
                "load": 3e5 / _hidden(v).wall_s,
                "lookup": {"hdd-7200": 50.0, "network-volume": 400.0, "sata-ssd": 900.0}[v["disk"]],
                "memory": 512.0,
            },
            {
                "load": ("rows/s", "higher"),
                "lookup": ("lookups/s", "higher"),
                "memory": ("MiB", "lower"),
            },
            doings=_hidden,
        ),
        {"disk": "sata-ssd"},
        "Choose sata-ssd: load is ",
        (
            "with hdd-7200 the program spends 46 % of the run waiting for 450 flushes of 10 ms each",
            "Processor time: 54 % of the run with hdd-7200, 98 % with sata-ssd.",
        ),
        says=(
            "also best for lookup (",
            "nothing is shown to be better for memory (",
        ),
        never=("speaks", "But"),
    ),
    "random-reads": Case(
        Planted(
            "What does it cost to read in the order of an index, and what does CLUSTER gain?",
            {"heap": ["clustered", "scattered"], "disk": ["hdd-7200", "sata-ssd"]},
            lambda v: {"time": _index(v).wall_s},
            {"time": ("s", "lower")},
            doings=_index,
        ),
        {"heap": "clustered"},
        "scattered instead of clustered multiplies time by 22 (21.2–23.2) with hdd-7200, and by 1.5",
        (
            "8,000 reads of 8 KiB each from heap, in random order, that wait 8 ms each",
            "96 % of the run",
        ),
        ("flush",),
        says=(
            "sata-ssd reduces it from 22× to 1.5×",
            "heap: 46 % of the variation in time; then heap × disk 27 % and disk 27 %",
        ),
        never=("on average",),
    ),
    "time-that-no-table-explains": Case(
        Planted(
            "How many workers should there be?",
            {"workers": ["1", "4"]},
            lambda v: {"time": 10.0 * int(v["workers"])},
            {"time": ("s", "lower")},
            doings=_sleeper,
        ),
        {"workers": "1"},
        "Choose 1 worker: time is ",
        (),
        ("waiting for",),
        says=("Unknown: what takes 95 % of the run with 4 workers", "locks"),
    ),
}


def answered(case: Case, place: Path) -> Analysis:
    """The analysis of a case, written into `place`."""
    return analyse(case.study.write(place / "out"), report=False)


def golden_text(case: Case, result: Analysis) -> str:
    """The golden text: question, answer, ranked table."""
    return "\n".join([f"> {case.study.question}", "", *result.lines()]) + "\n"


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            (GOLDEN / f"{name}.txt").write_text(golden_text(case, answered(case, Path(place))))
