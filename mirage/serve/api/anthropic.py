"""Errors in the form of Anthropic's API, for clients of ``/v1/messages``. Pure."""

from __future__ import annotations

import json
from typing import Any

MESSAGES = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Type of the error for each status; others are `invalid_request_error` below 500, else
`api_error`.
"""


def speaks(path: str) -> bool:
    """True if answers of `path` have Anthropic's form: ``/v1/messages`` and all paths below it."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def error_body(status: int, message: str) -> dict[str, Any]:
    """Body of an error answer, which is also the data of an error event in a stream."""
    usual = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": TYPES.get(status, usual), "message": message}}


def translated(body: bytes, status: int) -> bytes:
    """Body of an engine's error answer in Anthropic's form; vLLM uses OpenAI's form for some
    errors.

    A body that is not such an error is returned unchanged.
    """
    try:
        error = json.loads(body)["error"]
        message = error["message"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return body
    if not isinstance(message, str):
        return body
    return json.dumps(error_body(status, message)).encode()
