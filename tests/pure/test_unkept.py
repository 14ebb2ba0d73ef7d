"""Requests that ask the server to keep an answer are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirage.serve.api.openai import ApiError
from mirage.serve.api.stored_responses import ROUTE, check_unkept

pytestmark = pytest.mark.pure

ASKED: dict[str, Any] = {"model": "a", "input": "Hello"}


def checked(route: str = ROUTE, **more: Any) -> None:
    check_unkept(json.dumps(ASKED | more).encode(), route)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("store", True),
        ("store", 1),
        ("store", "true"),
        ("background", True),
        ("previous_response_id", "resp_1"),
        ("previous_response_id", ""),
    ],
)
def test_who_wants_an_answer_kept_is_told(param: str, value: Any) -> None:
    with pytest.raises(ApiError, match=f"responses are not kept here, and {param} needs") as found:
        checked(**{param: value})
    assert (found.value.status, found.value.param) == (400, param)
    assert found.value.code == "response_not_kept"
    checked("/v1/chat/completions", **{param: value})


def test_who_does_not_is_served() -> None:
    checked()
    checked(store=False, background=False, previous_response_id=None)
    checked(store=None, input=[{"role": "user", "content": "store"}], metadata={"store": True})
    check_unkept(b"\xef\xbb\xbf" + json.dumps(ASKED).encode(), ROUTE)
    check_unkept(b"--x", ROUTE)
