"""Audit: a log line for each act of an operator, at any log level."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from mirage.serve.admin.address import credentials
from mirage.serve.api.openai import ApiError

audit = logging.getLogger("mirage.serve.admin.audit")
audit.setLevel(logging.INFO)
LONGEST = 100
"""Most characters of text from a request that a line shows."""


@contextmanager
def audited(request: web.Request, act: str, tenant: str) -> Iterator[list[str]]:
    """Log an act at the end of the block, with the client's user and process.

    The block appends its result to the list; if it raises `ApiError`, that is the result.
    """
    result: list[str] = []
    who = _who(request)  # before its client goes away
    try:
        yield result
    except ApiError as error:
        result.append(f"{error.status} {error.message}")
        raise
    finally:
        said = result[0] if result else "500 no result"
        audit.info("%s act=%s tenant=%s result=%s", who, _word(act), _word(tenant), said)


def _who(request: web.Request) -> str:
    transport = request.transport
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is None:
        return "uid=? pid=?"
    who = credentials(connected)
    return f"uid={who.uid} pid={who.pid}"


def _word(sent: str) -> str:
    """Text from a request as one word of a log line."""
    plain = sent.isascii() and sent.isprintable() and " " not in sent
    return (sent if plain else ascii(sent))[:LONGEST]
