"""Headers that go on to an engine, and those of its answer that go to the client. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import CIMultiDict

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
"""What vLLM's routes read, and what says who asks and for what. All else stays here, as do keys,
cookies and what proxies add. `X-data-parallel-rank` is read as well, but an engine has one rank."""

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


def to_engine(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of a client's request that go on."""
    named = _named(headers)
    pairs = ((name, value) for name, value in headers.items() if name.lower() in TO_ENGINE - named)
    return CIMultiDict(pairs)


def to_client(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of an engine's answer that go on."""
    dropped = HOP_BY_HOP | _named(headers)
    pairs = ((name, value) for name, value in headers.items() if name.lower() not in dropped)
    return CIMultiDict(pairs)


def _named(headers: Mapping[str, str]) -> set[str]:
    """Names that `Connection` nominates; it may be there more than once."""
    lists = [value for name, value in headers.items() if name.lower() == "connection"]
    return {word.strip().lower() for words in lists for word in words.split(",")}
