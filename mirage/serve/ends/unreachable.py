"""Engines at whose sockets nobody listens any more. Pure: the caller says what time it is."""

from __future__ import annotations

from collections.abc import Mapping

SURE_S = 1.0
"""An engine that has just ended is heard of otherwise, and sooner."""


class Unreachable:
    """Record of engines that should serve and cannot be reached."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, found: Mapping[str, str], now: float) -> dict[str, str]:
        """`found`: why the engine of a tenant cannot be reached, for those that cannot, now.

        Returns those for which this was so all along for `SURE_S`.
        """
        self._since = {name: self._since.get(name, now) for name in found}
        return {name: why for name, why in found.items() if now - self._since[name] >= SURE_S}
