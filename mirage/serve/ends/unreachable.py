"""Engines whose sockets cannot be connected any more. Pure: the caller tells the time."""

from __future__ import annotations

from collections.abc import Mapping

SURE_S = 1.0
"""Seconds for which an engine has to be unreachable at every look before it is reported. The end
of its process is noticed sooner in other ways.
"""


class Unreachable:
    """Record of engines that should serve and cannot be reached."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, found: Mapping[str, str], now: float) -> dict[str, str]:
        """Note the engines that cannot be reached `now`, by tenant with the reason.

        Returns those that have been unreachable at every look for `SURE_S` seconds.
        """
        self._since = {name: self._since.get(name, now) for name in found}
        return {name: why for name, why in found.items() if now - self._since[name] >= SURE_S}
