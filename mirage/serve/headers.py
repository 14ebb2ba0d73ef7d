"""Headers that go on to an engine, and those of its answer that go to the client. Pure."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy, istr

CONNECTION = istr("Connection")
"""Header that names others of one connection."""

TO_ENGINE = {
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "content-type",
    "endpoint-load-metrics-format",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-request-id",
    "x-session-id",
    "x-vllm-priority",
}
"""Headers that vLLM's routes read, and those that say who asks and for what. All others stay here,
as do keys, cookies and what proxies add. `X-data-parallel-rank` is read as well, but an engine has
one rank.
"""

HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""Headers of one connection, as are all that `Connection` names."""


def to_engine(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers of a client's request that go on."""
    wanted = TO_ENGINE - _named(headers) if CONNECTION in headers else TO_ENGINE
    return CIMultiDict([one for one in headers.items() if one[0].lower() in wanted])


def to_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers of an engine's answer that go on."""
    dropped = HOP_BY_HOP | _named(headers) if CONNECTION in headers else HOP_BY_HOP
    return CIMultiDict([one for one in headers.items() if one[0].lower() not in dropped])


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    """Names that `Connection` nominates; it may be there more than once."""
    lists = headers.getall(CONNECTION, ())
    return {word.strip().lower() for words in lists for word in words.split(",")}
