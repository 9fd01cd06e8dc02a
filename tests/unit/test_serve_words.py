"""Text that is not valid Unicode in HTTP requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.server.api import models
from penstock.parts.server.api.clusters import spec_of


@pytest.mark.parametrize(
    "platform",
    [{"\ud800": 1}, {"name": "\udc80"}, '"\\ud800": 1', '{"name": "\\ud83d\\ude00 \\udc80"}'],
)
def test_half_a_surrogate_pair_is_refused_with_a_valid_message(platform: Any) -> None:
    with pytest.raises(BadInput) as caught:
        spec_of(models.PutUp.model_construct(platform=platform))
    assert json.loads(json.dumps(str(caught.value), ensure_ascii=False).encode())


def test_a_platform_given_as_an_object_keeps_its_characters() -> None:
    with pytest.raises(BadInput, match="the unknown key '\U0001f600'"):
        spec_of(models.PutUp(platform={"\U0001f600": 1}))
