"""`/metrics` in the OpenMetrics format: metrics of the server, and the latest value of each live series.

Prometheus gets the experiments that its token may read: with a user's token, the user's own and shared ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from fastapi import FastAPI, Request
from fastapi.responses import Response

from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.latest import Newest
from penstock.parts.monitoring.queries.export import MEDIA, escaped
from penstock.parts.monitoring.queries.prometheus_names import exposed, with_added
from penstock.routes.caller import caller_of
from penstock.routes.server import Server
from penstock.version import version

#: metrics of the server
_SERVER_START_TIME, _RUNNING = (
    "penstock_server_start_time_seconds",
    "penstock_server_experiments_running",
)
_START_TIME = "penstock_experiment_start_time_seconds"
#: labels, value, timestamp [ns since 1970 UTC] or None for now
_Sample = tuple[dict[str, str], float, int | None]


def add_routes(app: FastAPI, server: Server, store: Callable[[], Experiments]) -> None:
    """Add the route."""
    server.user_paths.append("/metrics")
    newest, start_s = Newest(), time.time()

    @app.get(
        "/metrics",
        tags=["experiments"],
        summary="Get metrics of the server and the latest values of running experiments, as OpenMetrics",
        response_class=Response,
        responses={200: {"content": {MEDIA["openmetrics"]: {}}}},
    )
    def metrics(request: Request) -> Response:
        newest.keep(e.live for e in store().listed(None, state="running"))
        running = store().listed(caller_of(request).reader, state="running")
        families: dict[str, list[_Sample]] = {
            _SERVER_START_TIME: [({"version": version()}, start_s, None)],
            _RUNNING: [({}, float(len(running)), None)],
        }
        for experiment in running:
            for metric, sample in _samples(experiment, newest):
                families.setdefault(metric, []).append(sample)
        text = "".join(line for name in sorted(families) for line in _lines(name, families[name]))
        return Response(f"{text}# EOF\n", media_type=MEDIA["openmetrics"])


def _samples(experiment: Experiment, newest: Newest) -> Iterator[tuple[str, _Sample]]:
    own = {
        "penstock_experiment": f"{experiment.name}#{experiment.repeat}",
        "penstock_user": experiment.owner,
    }
    yield _START_TIME, (own, experiment.start_ns / 1e9, None)
    for name, (utc_ns, value) in newest.of(experiment.live).items():
        metric, labels = exposed(name._asdict())
        # metrics such as a.b and a-b have the same name here
        added = own if metric == name.metric else {**own, "penstock_metric": name.metric}
        yield metric, (with_added(labels, added), value, utc_ns)


def _lines(name: str, samples: list[_Sample]) -> Iterator[str]:
    yield f"# TYPE {name} unknown\n"
    for labels, value, utc_ns in samples:
        label_text = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
        timestamp = "" if utc_ns is None else f" {utc_ns // 10**9}.{utc_ns % 10**9:09}"
        yield f"{name}{{{label_text}}} {_number(value)}{timestamp}\n"


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
