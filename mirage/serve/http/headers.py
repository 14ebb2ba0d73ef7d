"""Headers that are passed on, to an engine and back to the client. Pure."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy, istr

CONNECTION = istr("Connection")
"""Header that names other headers which are for one connection only."""

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
"""Headers of requests that are passed on: those that vLLM's routes read, and some that identify
client and trace. All others are dropped, such as keys, cookies and headers of proxies.
`X-data-parallel-rank` is dropped too, because an engine has only one rank.
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
"""Headers that are for one connection only, like all that `Connection` names."""


def to_engine(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers of a client's request that are passed on to an engine."""
    wanted = TO_ENGINE - _named(headers) if CONNECTION in headers else TO_ENGINE
    return CIMultiDict([one for one in headers.items() if one[0].lower() in wanted])


def to_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers of an engine's answer that are passed on to the client."""
    dropped = HOP_BY_HOP | _named(headers) if CONNECTION in headers else HOP_BY_HOP
    return CIMultiDict([one for one in headers.items() if one[0].lower() not in dropped])


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    """Names of headers that `Connection` headers list, in lower case."""
    lists = headers.getall(CONNECTION, ())
    return {word.strip().lower() for words in lists for word in words.split(",")}
