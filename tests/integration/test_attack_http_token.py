"""Requests to every operation of the OpenAPI without authorization, on a server with a cluster and a disk."""

from __future__ import annotations

import pytest
from schemathesis import Case

from tests.integration.http_attack import (
    OPERATIONS,
    Server,
    one_server,
    run_cases,
    send,
    use_existing_objects,
)
from tests.integration.node_ground import NODES

__all__ = ["one_server"]  # a fixture
pytestmark = [*NODES, pytest.mark.long]


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_is_executed_without_the_token(server: Server, name: str) -> None:
    before = server.journal()

    @run_cases(name, 6)
    def attack(case: Case, known: bool) -> None:
        if known:
            use_existing_objects(case, server)
        for authorization in (None, f"Bearer {server.token[:-1]}"):
            answer = send(case, server, authorization)
            assert answer.status_code == 401, case.as_curl_command()
            assert set(answer.json()) == {"detail"}

    assert server.journal() == before
