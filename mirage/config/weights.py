"""Sections `keeper` and `weights`: weights without an engine, in memory and in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_serializer

from mirage.config.strict import Strict
from mirage.config.values import LARGEST_BYTES, FilePath, parse_bytes


class KeeperSection(Strict):
    """Host memory for weights of tenants without an engine (docs/roster.md)."""

    idle_bytes: (
        Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=LARGEST_BYTES)] | None
    ) = None
    """Most bytes of weights that stay in host memory while no engine uses them. None: half of the
    memory that the machine or the control group has beside the device and the tiers.
    """


class WeightsSection(Strict):
    """Store of weights on this machine, and servers from which it gets weights that it lacks
    (docs/fetching.md).
    """

    store: FilePath | None = None
    """Folder of the store; None: ``mirage/weights`` in the cache of this user."""
    sources: list[Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")]] = Field(
        default_factory=list
    )
    """Addresses of servers of weights that are asked for weights that the store lacks."""
    secret: FilePath | None = None
    """File with the secret that sources require; None derives it from the secret of this machine's
    node."""
    ahead: bool = True
    """With several machines: True if each brings the weights of all models in advance, False if it
    brings those of a model when the model goes there.
    """

    @field_serializer("store", "secret")
    def _as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)
