"""What `penstock serve` holds in memory, and what it answers to moments and values that nothing can hold."""

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
from tests.unit.test_serve_connections import most_memory

S = 10**9
T0 = 1_700_000_000 * S
MOST_BYTES = 400 << 20


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    made = Answers(tmp_path_factory.mktemp("bounds"))
    assert made("POST", "/exp/marked", OWN).status_code == 201
    return made


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


@pytest.mark.parametrize("said", ODD)
def test_a_moment_that_no_clock_has_is_400_with_what_was_expected(ask: Answers, said: str) -> None:
    """Breaks with an internal error, or where `true` is a second after 1970."""
    body = f'{{"utc_time": {said}}}'
    for method, path in (("POST", "/exp/odd"), ("POST", "/api/v1/experiments/marked/marks")):
        more = (
            body if path == "/exp/odd" else body.replace("{", '{"kind": "note", "name": "n", ', 1)
        )
        answer = ask(method, path, OWN, content=more)
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()) == {"detail"}
    assert ask("GET", "/api/v1/experiments/odd", OWN).status_code == 404


@pytest.mark.parametrize(
    "said", [True, False, 10**18, -(10**18), 10**400, float("inf"), "1e999", "0001-01-01T00:00:00Z"]
)
def test_moments_are_those_of_64_bits(said: Any) -> None:
    with pytest.raises(BadInput, match=r"found time .*; expected"):
        moment_ns(said)


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
    answer = ask("GET", "/exp/halves", OWN, content=body)
    assert answer.status_code == 400, answer.text
    assert "surrogate" in answer.json()["detail"]


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
            answer = ask(method, path, OWN, content=body)
            assert 400 <= answer.status_code < 500, answer.text
            assert "detail" in answer.json()


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
def test_numbers_that_json_lacks_are_not_taken(ask: Answers, body: str) -> None:
    ask("POST", "/exp/finite", OWN, json={"repeat": True})
    answer = ask("PUT", "/exp/finite", OWN, content=body)
    assert answer.status_code in (201, 400)
    json.loads(ask("GET", "/api/v1/experiments/finite", OWN).text, parse_constant=pytest.fail)


@pytest.mark.long
def test_many_large_answers_at_once_leave_memory_small(tmp_path: Path) -> None:
    """Breaks where each answer is made while the others are, or waits in memory for who reads it slowly."""
    # an interpreter of its own: a forked one has the libraries of all tests in its memory
    server = Server(tmp_path, PYTHONNOUSERSITE="1")
    try:
        server.http.post("/exp/big", json={"utc_time": T0 // S})
        door = Remote(server.url, server.token)
        for number in range(10):
            times = T0 + (np.arange(100_000) + number * 100_000) * 1_000_000
            table = points(metric="v", utc_ns=times, float=np.random.default_rng(1).random(100_000))
            door.write("big", Batch("s", number, table))
        server.http.put("/exp/big", json={"utc_time": T0 // S + 2000})

        def rows(wanted: str) -> int:
            where = f"{server.url}/exp/big%231/data?metric=v&format={wanted}"
            count = 0
            with httpx.stream("GET", where, headers=server.right, timeout=600) as answer:
                assert answer.status_code == 200
                for part in answer.iter_raw():
                    count += part.count(b"\n")
            return count

        for wanted, head in (("jsonl", 0), ("csv", 1)):
            with ThreadPoolExecutor(12) as pool:
                assert set(pool.map(rows, [wanted] * 12)) == {1_000_000 + head}
            assert most_memory(server.process) < MOST_BYTES
    finally:
        server.end()
