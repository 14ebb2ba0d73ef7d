"""Section `http`: limits on connections and requests at the address of all models, times of the
server's stop, and TLS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, field_serializer, model_validator

from mirage.config.strict import Strict
from mirage.config.values import Bytes, Count, FilePath, parse_span
from mirage.units import KIB, MIB

LARGEST_BODY = 64 * MIB
"""Most bytes of a request's body, as received and when decompressed."""


class TlsSection(Strict):
    """PEM files with which the address speaks TLS; `load` makes their paths absolute.

    Symbolic links are kept, because a renewed certificate is often a link that changed.
    """

    certificate: FilePath
    """The certificate, followed by the intermediate ones up to its root."""
    key: FilePath

    @field_serializer("certificate", "key")
    def _as_text(self, path: Path) -> str:
        return str(path)


class HttpSection(Strict):
    """Limits on connections and requests at the address of all models, and how the server stops
    (docs/clients.md).
    """

    head_s: PositiveFloat = Field(default=10.0, le=1e6)
    """Seconds in which the head of a request must be complete, from its first byte; for a
    connection's first request, from the connection's begin.
    """
    body_s: PositiveFloat = Field(default=30.0, le=1e6)
    """Seconds in which a body must be complete, beside the time that `body_rate` adds."""
    body_rate: Bytes = 64 * KIB
    """Bytes of a body, as received, that extend `body_s` by one second."""
    idle_s: PositiveFloat = Field(default=75.0, le=1e6)
    """Seconds for which an idle connection is kept for its next request."""
    body_bytes: Bytes = 256 * MIB
    """Most bytes that the bodies of all requests that are not answered yet may have together."""
    connections: Count = 8192
    connections_per_peer: Count = 4096
    """Most connections from one address, which may be a load balancer's."""
    stream_quiet_s: Annotated[
        Annotated[float, Field(gt=0, le=1e6)] | None, BeforeValidator(parse_span)
    ] = 15.0
    """Seconds without a byte after which a stream of events gets a comment; None: no comments are
    sent.
    """

    drain_delay_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Seconds for which a stopping server still accepts requests while ``/ready`` reports the stop,
    so that a load balancer which asks now and then notices it.
    """
    drain_s: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Seconds after `drain_delay_s` in which running requests may still end by themselves."""
    silent_s: Annotated[int, Field(ge=2, le=60)] = 3
    """Seconds without a sign of another machine of a cluster after which connections with it are
    broken off; see `mirage.control.machine_silence`.
    """
    cors: list[Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s*]+)$")]] = Field(
        default_factory=list
    )
    """Origins whose pages may send requests to the models; ``*`` is any."""
    tls: TlsSection | None = None
    """Files for TLS; None: plain HTTP."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> HttpSection:
        if self.body_bytes < LARGEST_BODY:
            raise ValueError(
                f"body_bytes is {self.body_bytes}, and one body may have {LARGEST_BODY}: "
                f"use {LARGEST_BODY // MIB}MiB or more"
            )
        return self
