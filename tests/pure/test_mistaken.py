"""Clients whose base URL is too long or too short are told the right route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.api.route_hint import advice
from mirage.serve.api.routes import JSON_ROUTES

pytestmark = pytest.mark.pure

ROUTES = [
    *(("POST", route) for route in JSON_ROUTES),
    *(("GET", route) for route in ("/v1/models", "/v1/models/{model}", "/health", "/metrics")),
    ("HEAD", "/health"),
]
OFTEN = " (the client's base URL has /v1 once too often)"
LACKS = " (the client's base URL lacks /v1)"


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/v1/messages", f"use POST /v1/messages{OFTEN}"),
        ("POST", "/v1/v1/chat/completions", f"use POST /v1/chat/completions{OFTEN}"),
        ("POST", "/v1/v1/v1/completions", f"use POST /v1/completions{OFTEN}"),
        ("POST", "/chat/completions", f"use POST /v1/chat/completions{LACKS}"),
        ("POST", "/messages/count_tokens", f"use POST /v1/messages/count_tokens{LACKS}"),
        ("GET", "/models", f"use GET /v1/models{LACKS}"),
        ("GET", "/models/a", f"use GET /v1/models/a{LACKS}"),
        ("GET", "/models/b/1", f"use GET /v1/models/b/1{LACKS}"),
        ("GET", "/v1/v1/models/a", f"use GET /v1/models/a{OFTEN}"),
        ("POST", "/v1/tokenize", f"use POST /tokenize{OFTEN}"),
        ("GET", "/v1/health", f"use GET /health{OFTEN}"),
        ("POST", "/v1/chat/completions/", "use POST /v1/chat/completions"),
        ("POST", "//v1//completions", "use POST /v1/completions"),
        ("POST", "/api/v1/chat/completions", "use POST /v1/chat/completions"),
        ("POST", "/v1/engines/a/completions", "use POST /v1/completions"),
        ("POST", "/v1/completion", "use POST /v1/completions"),
        ("GET", "/chat/completions", f"use POST /v1/chat/completions{LACKS}"),
        ("POST", "/models/a", ""),
        ("GET", "/nowhere", ""),
        ("GET", "/", ""),
        ("GET", "/v1", ""),
    ],
)
def test_the_route_that_was_meant_is_named(method: str, path: str, words: str) -> None:
    assert advice(method, path, ROUTES) == words


@given(st.text(max_size=50))
def test_any_path_is_looked_at(path: str) -> None:
    assert len(advice("POST", f"/{path}", ROUTES)) < 300
