"""Anthropic's form of an error, which clients of ``/v1/messages`` read. Pure."""

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
"""Types of errors by status; of others `invalid_request_error` below 500, else `api_error`."""


def speaks(path: str) -> bool:
    """True if `path` is answered in Anthropic's form, as all paths below its route are."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def error_body(status: int, message: str) -> dict[str, Any]:
    """The body of an answer, and the data of an event that ends a stream."""
    usual = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": TYPES.get(status, usual), "message": message}}


def translated(body: bytes, status: int) -> bytes:
    """An engine's answer of an error `status`; vLLM has OpenAI's form for some, and own types.

    What is no such answer stays as it is.
    """
    try:
        error = json.loads(body)["error"]
        message = error["message"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return body
    if not isinstance(message, str):
        return body
    return json.dumps(error_body(status, message)).encode()
