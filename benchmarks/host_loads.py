"""The requests with which engines are measured, bare and served."""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """So many requests of one length that an engine always has; lengths in tokens."""

    at_once: int
    prompt: int
    output: int

    def limited(self, most: int) -> Load:
        """As an engine that runs at most `most` requests bears it."""
        return self._replace(at_once=min(self.at_once, most))


FEW = Load(2, 160, 40)
MANY = Load(24, 16, 40)
"""Short enough that so many fit into the KV cache that one engine gets of the demo's device."""
