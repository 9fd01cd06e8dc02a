"""Memory of `penstock serve`, and its responses to times and values outside of all ranges."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.monitoring.experiments.timestamps import moment_ns
from penstock.parts.monitoring.outbox.client import Remote
from tests.unit.test_experiment_server import Server
from tests.unit.test_local_users import OWN, Answers
from tests.unit.test_serve_connections import peak_memory

S = 10**9
T0 = 1_700_000_000 * S
MOST_BYTES = 400 << 20


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    answers = Answers(tmp_path_factory.mktemp("bounds"))
    assert answers("POST", "/exp/marked", OWN).status_code == 201
    return answers


ODD = (
    *(
        "1e9999999",
        "-1e9999999",
        "1e18",
        "9000000000",
        "true",
        "false",
        "NaN",
        "Infinity",
        "1" * 5000,
    ),
    *('"9999-12-31T23:59:59Z"', '"0001-01-01T00:00:00Z"', '"0001-01-01T00:00:00+23:59"'),
    *('"9999-12-31T23:59:59-23:59"', '"1e9999999"', '"inf"', '""', '"\\ud800"', "[1]", '{"a": 1}'),
)


@pytest.mark.parametrize("time", ODD)
def test_an_invalid_time_is_400_with_the_expected_form(ask: Answers, time: str) -> None:
    """Fails with an internal error, or if `true` is read as one second after 1970."""
    body = f'{{"utc_time": {time}}}'
    for method, path in (("POST", "/exp/odd"), ("POST", "/api/v1/experiments/marked/marks")):
        content = (
            body if path == "/exp/odd" else body.replace("{", '{"kind": "note", "name": "n", ', 1)
        )
        response = ask(method, path, OWN, content=content)
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/json"
        assert set(response.json()) == {"detail"}
    assert ask("GET", "/api/v1/experiments/odd", OWN).status_code == 404


@pytest.mark.parametrize(
    "time", [True, False, 10**18, -(10**18), 10**400, float("inf"), "1e999", "0001-01-01T00:00:00Z"]
)
def test_times_beyond_64_bits_are_refused(time: Any) -> None:
    with pytest.raises(BadInput, match=r"found time .*; expected"):
        moment_ns(time)


@pytest.mark.parametrize(
    "body",
    [
        b'{"metric": "\\ud800"}',
        b'{"\\uDFFF": 1, "metric": "a"}',
        b'{"metric": "\xed\xa0\x80"}',
        '{"metric": "\\ud800"}'.encode("utf-16"),
    ],
    ids=["escaped", "in a key", "encoded", "in UTF-16"],
)
def test_half_of_a_surrogate_pair_is_refused(ask: Answers, body: bytes) -> None:
    ask("POST", "/exp/halves", OWN, json={"repeat": True})
    response = ask("GET", "/exp/halves", OWN, content=body)
    assert response.status_code == 400, response.text
    assert "surrogate" in response.json()["detail"]


@pytest.mark.parametrize("depth", [400, 980, 5_000, 100_000])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/exp/deep"), ("PUT", "/exp/deep"), ("GET", "/exp/deep")),
        *(("POST", "/api/v1/experiments/deep/points"), ("POST", "/api/v1/experiments/deep/marks")),
        *(("POST", "/grafana/query"), ("POST", "/search")),
    ],
)
def test_json_of_any_depth_is_answered(ask: Answers, method: str, path: str, depth: int) -> None:
    for inner in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        for body in (inner, f'{{"receipts": {{"a": {inner}}}}}', f'{{"params": {{"a": {inner}}}}}'):
            response = ask(method, path, OWN, content=body)
            assert 400 <= response.status_code < 500, response.text
            assert "detail" in response.json()


@pytest.mark.parametrize(
    "body",
    [
        '{"receipts": {"a": {"b": 1e999999}}}',
        '{"receipts": {"a": {"b": [[NaN]], "c": 1e400}}}',
        '{"utc_time": ["1"]}',
        "[1]",
        '"x"',
    ],
)
def test_numbers_that_json_lacks_are_not_stored(ask: Answers, body: str) -> None:
    ask("POST", "/exp/finite", OWN, json={"repeat": True})
    response = ask("PUT", "/exp/finite", OWN, content=body)
    assert response.status_code == 400, response.text
    json.loads(ask("GET", "/api/v1/experiments/finite", OWN).text, parse_constant=pytest.fail)


@pytest.mark.long
def test_many_large_responses_at_once_need_little_memory(tmp_path: Path) -> None:
    """Fails if responses are computed at the same time, or if one waits in memory for a slow reader."""
    # a new interpreter: a forked one has the libraries of all tests in memory
    server = Server(tmp_path, PYTHONNOUSERSITE="1")
    try:
        server.http.post("/exp/big", json={"utc_time": T0 // S})
        client = Remote(server.url, server.token)
        for number in range(10):
            times = T0 + (np.arange(100_000) + number * 100_000) * 1_000_000
            table = points(metric="v", utc_ns=times, float=np.random.default_rng(1).random(100_000))
            client.write("big", Batch("s", number, table))
        server.http.put("/exp/big", json={"utc_time": T0 // S + 2000})

        def rows(form: str) -> int:
            url = f"{server.url}/exp/big%231/data?metric=v&format={form}"
            count = 0
            with httpx.stream("GET", url, headers=server.right, timeout=600) as response:
                assert response.status_code == 200
                for part in response.iter_raw():
                    count += part.count(b"\n")
            return count

        for form, head in (("jsonl", 0), ("csv", 1)):
            with ThreadPoolExecutor(12) as pool:
                assert set(pool.map(rows, [form] * 12)) == {1_000_000 + head}
            assert peak_memory(server.process) < MOST_BYTES
    finally:
        server.end()
