"""Authorized requests to every operation of the OpenAPI, on a server with a cluster and a disk."""

from __future__ import annotations

import pytest
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.http_attack import (
    EXAMPLES,
    OPERATIONS,
    STREAMS,
    Server,
    one_server,
    run_cases,
    send,
    shorten_waits,
    use_existing_objects,
)
from tests.integration.node_ground import NODES

__all__ = ["one_server"]  # a fixture
pytestmark = [*NODES, pytest.mark.long]


@pytest.mark.parametrize(
    "name", [n for n, o in OPERATIONS.items() if (o.method.upper(), o.path) not in STREAMS]
)
def test_every_answer_is_documented_in_the_openapi(server: Server, name: str) -> None:
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]

    @run_cases(name, EXAMPLES)
    def ask(case: Case, known: bool) -> None:
        if known:
            use_existing_objects(case, server)
        shorten_waits(case.body)
        shorten_waits(case.query)
        answer = send(case, server, f"Bearer {server.token}")
        assert answer.status_code not in (401, 403, 421)
        case.validate_response(answer, checks=checks)
