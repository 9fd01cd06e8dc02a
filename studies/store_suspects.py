"""What is wrong is planted on a real store, and the comparison with its model has to name it.

MooseFS on a manager and four nodes, service times found on three of them. Healthy runs first: what the
model is always off by. Then the same workloads with nothing wrong (nothing may be named), with a seeded
time of reading that is made 20 % too long, with a link that delivers 80 %, and with one node that has
half the processor time of the others (a store in memory is as fast as its processor).

    python studies/store_suspects.py [--repeat 4] [--quick] [--json] [--record]

Exit status 3 if the first thing named is not what was planted, or something is named where nothing is
wrong, or a plant was not compared; 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.emulate.cluster.change_arguments import changes_of  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.parts.stores.calibration.seed import Measurements, measure_store  # noqa: E402
from penstock.parts.stores.store import Store  # noqa: E402
from penstock.parts.stores.workflow.execute import Executed, execute  # noqa: E402
from penstock.parts.stores.workflow.run import store_of  # noqa: E402
from penstock.parts.stores.workflow.suspects import Comparison, Suspect, suspects, usual  # noqa: E402
from penstock.platform.hosts import Platform  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, claim, met_if  # noqa: E402
from studies.prediction_study.scenarios import Scenario  # noqa: E402
from studies.stores import DEFAULT, NOMINAL_BPS, cluster, models, seeded_under  # noqa: E402

ENGINE, NODES = "moosefs", 4
#: local and remote, so that each value shows in some of them, and how often for each `--repeat`: local
#: operations differ most from one to the next
WORKLOADS = {
    Scenario("pipeline", 4, NODES, hints=True): 4,
    Scenario("pipeline", 4, NODES, hints=False): 1,
    Scenario("scatter", 4, NODES, hints=False): 1,
}
#: how much longer the file says a read takes; what a link delivers; processors of a slow node
WRONG, DELIVERS, SLOW_CPUS = 1.2, 0.8, 0.12
SLOW_NODE, SLOW_LINK = "node-2", "node-1"
#: by plant, what is to be named first ("": nothing)
EXPECTED = {
    "nothing": "",
    "a seeded read 20 % too long": "storage.read",
    "a link that delivers 80 %": f"link of {SLOW_LINK}",
    "a slow node": f"storage of {SLOW_NODE}",
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=4, help="runs of each workload")
    parser.add_argument("--quick", action="store_true", help="two runs of each; names less")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    options = parser.parse_args()
    try:
        seen = measure_store(cluster(ENGINE, []), budget_s=60, note=_heard)
        named = planted(seen, 2 if options.quick else options.repeat)
    except PenstockError as error:
        print(f"store_suspects: {error}", file=sys.stderr)
        return 1
    claims = claims_of(named)
    plants = {
        c.of: not c.missing and c.result is checks.Result.MET for c in claims if EXPECTED[c.of]
    }
    rows = checks.rows(claims)
    record.keep(options.record, rows, plants, f"{options.repeat} runs of each of three workloads.")
    if options.json:
        print(json.dumps(rows))
    else:
        checks.show(claims)
    return checks.finish("store_suspects", claims)


def claims_of(named: Mapping[str, Sequence[Suspect]]) -> list[Claim]:
    """One claim per plant: the first suspect is the one that was planted."""

    def first_of(plant: str) -> Finding:
        suspected = named[plant]
        evidence = "; ".join(map(str, suspected[:3])) or "nothing is named"
        first = suspected[0].name if suspected else ""
        return met_if(first == EXPECTED[plant], evidence)

    return [
        claim(
            plant,
            "named first",
            {plant: int(plant in named)},
            lambda plant=plant: first_of(plant),
            criterion=expected or "nothing",
        )
        for plant, expected in EXPECTED.items()
    ]


def planted(seen: Measurements, repeat: int) -> dict[str, list[Suspect]]:
    """By plant, what the comparison names."""
    platform = seeded_under(ENGINE, seen, models(ENGINE)[DEFAULT])([])
    nodes = cluster(ENGINE, [])
    found: dict[str, list[Suspect]] = {}
    with store_of(nodes, ENGINE) as store:
        known = usual(platform, compared(store, nodes, repeat, "healthy"))
        again = compared(store, nodes, repeat, "healthy, again")
        found["nothing"] = suspects(platform, again, known)
        found["a seeded read 20 % too long"] = suspects(_longer_reads(platform), again, known)
        for plant, broken, whole in (
            (
                "a link that delivers 80 %",
                [SLOW_LINK, f"bandwidth={DELIVERS * NOMINAL_BPS / 1e6:g}Mbit/s"],
                [SLOW_LINK, f"bandwidth={NOMINAL_BPS / 1e6:g}Mbit/s"],
            ),
            ("a slow node", [SLOW_NODE, f"cpus={SLOW_CPUS}"], []),
        ):
            store.cluster.change(changes_of(broken))
            found[plant] = suspects(platform, compared(store, nodes, repeat, plant), known)
            if whole:
                store.cluster.change(changes_of(whole))
    return found


def compared(store: Store, nodes: Platform, repeat: int, what: str) -> list[Comparison]:
    """Runs of every workload."""
    clients = [h for h in nodes.hosts if "client" in h.roles]
    made = []
    for scenario, times in WORKLOADS.items():
        runs: list[Executed] = [
            execute(
                scenario.workload(),
                store,
                slots={h.name: h.slots for h in clients},
                groups={h.name: h.group for h in clients},
                by_data=scenario.hints,
            )
            for _ in range(repeat * times)
        ]
        _heard(f"{what}: {scenario}: {_times(runs)}")
        made.append(Comparison(scenario.workload(), runs))
    return made


def _longer_reads(platform: Platform) -> Platform:
    """With a time of reading that is too long, as from a seeding that went wrong."""
    read = next(h for h in platform.lower()["hosts"] if h["storage"])["storage"]["read"]
    value = {
        "overhead": f"{1e6 * WRONG * read['overhead']:.6g} us",
        "per_byte": f"{1e3 * WRONG * read['s_per_byte'] * 2**20:.6g} ms/MiB",
    }
    return platform.with_values({"hosts.node.storage.read": value})


def _times(runs: Sequence[Executed]) -> str:
    return ", ".join(f"{run.makespan_s:.2f}" for run in runs) + " s"


def _heard(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
