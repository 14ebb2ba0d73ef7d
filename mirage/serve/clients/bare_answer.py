"""Bytes of an answer on a connection where no request could be read. Pure."""

from __future__ import annotations

import json
from http import HTTPStatus

from mirage.serve.api.openai import ApiError
from mirage.serve.http.request_id import HEADER


def bare(error: ApiError, server: str, identity: str) -> bytes:
    """Answer in HTTP/1.1 for `error`, after which the connection is closed.

    `server` and `identity` are the values of the Server and X-Request-Id headers.
    """
    body = json.dumps(error.body()).encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        **error.headers,
        HEADER: identity,
        "Server": server,
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
