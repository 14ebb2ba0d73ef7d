"""Requests to wrong addresses: the answer names the right one in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients import connected, one_answer
from test_router import Site, run

pytestmark = pytest.mark.e2e
CHAT = "use POST /v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/v1/chat/completions", f"{CHAT} (the client's base URL has /v1 once too often)"),
        ("//v1/chat/completions", CHAT),
        ("//v1//chat/completions", CHAT),
        ("/v1//chat/completions", CHAT),
        ("///chat/completions", f"{CHAT} (the client's base URL lacks /v1)"),
        ("/v1/chat/completions/", CHAT),
        ("/v1/chat/completions//", CHAT),
        ("/chat/completions", f"{CHAT} (the client's base URL lacks /v1)"),
        ("/v1/completion", "use POST /v1/completions"),
        ("/v1/chat/completion", CHAT),
        ("/v1/chat/completions/?x=1", CHAT),
    ],
)
def test_a_404_says_the_right_address(tmp_path: Path, path: str, words: str) -> None:
    """A raw request to a wrong path, which HTTP clients would correct before sending, is answered
    with 404 and the right path.
    """

    async def scenario(site: Site) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
        reader, writer = await connected(site.url, head.encode())
        status, _, body = await one_answer(reader)
        message = json.loads(body)["error"]["message"]
        bare = path.partition("?")[0]
        assert (status, message) == (404, f"POST {bare}: Not Found: {words}")
        writer.close()

    run(tmp_path, scenario)
