"""GPU memory that engines take beside their grants, and the check that enough is left. Pure.

Contexts, workspaces of libraries, activations and captured graphs are in no ledger. When an engine
has made its first step, the driver tells how much of the device is free. Memory that is neither
free nor in the ledger is outside grants, and the engine's part is the increase. Parts of engines
that start together cannot be told apart: when the last of them has made its step, each is given an
equal part.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mirage.units import MIB, size

MARGIN_BYTES = 512 * MIB
"""Bytes kept free beside `device.memory`: the longest prompt takes more than a first step."""


class Outside:
    """Memory that the engines of one device take outside their grants. Of the device `ledger_bytes`
    may be granted, and `margin_bytes` have to be left beside grants and that memory."""

    def __init__(self, ledger_bytes: int, margin_bytes: int = MARGIN_BYTES) -> None:
        self._ledger_bytes, self._margin_bytes = ledger_bytes, margin_bytes
        self._total_bytes = 0
        self._parts: dict[str, int] = {}
        self._unknown: set[str] = set()
        """Engines that made their first step while others were starting, so that their parts are
        unknown.
        """

    @property
    def left_bytes(self) -> int:
        """Bytes of the device that may not be granted and are not taken outside grants."""
        return self._total_bytes - self._ledger_bytes - sum(self._parts.values())

    def stepped(
        self, name: str, free_bytes: int, total_bytes: int, booked_bytes: int, starting: bool
    ) -> str:
        """Note the first step of engine `name`; return the reason why it may not serve, empty if it
        may.

        `booked_bytes` are those that all connected engines may hold. The check is left out on a
        device of 0 bytes, and while other engines are `starting`, whose parts cannot be told apart.
        """
        if not total_bytes:
            return ""
        self._total_bytes = total_bytes
        self._unknown.add(name)
        if starting:
            return ""
        outside = total_bytes - free_bytes - booked_bytes - sum(self._parts.values())
        for one in self._unknown:
            self._parts[one] = max(0, outside) // len(self._unknown)
        self._unknown.clear()
        return self._too_little()

    def _too_little(self) -> str:
        if self.left_bytes >= self._margin_bytes:
            return ""
        return (
            f"{size(max(0, self.left_bytes))} of the GPU are left beside device.memory "
            f"({size(self._ledger_bytes)}) and what engines take outside their grants "
            f"({size(sum(self._parts.values()))}), and {size(self._margin_bytes)} have to be: "
            f"lower device.memory by {size(self._margin_bytes - self.left_bytes)}"
        )

    def over(self, name: str) -> None:
        """Forget the engine `name`, which has ended."""
        self._parts.pop(name, None)
        self._unknown.discard(name)

    def part(self, name: str) -> int | None:
        """Bytes that an engine takes outside its grant; None while unknown."""
        return self._parts.get(name)

    def told(self, names: Collection[str]) -> dict[str, Any]:
        """Part of ``/mirage/state`` about memory outside grants; empty while none is known."""
        if not self._parts:
            return {}
        engines = {name: self._parts[name] for name in names if name in self._parts}
        figures = {"device_bytes": self._total_bytes, "left_bytes": self.left_bytes}
        return {"outside": figures | {"engines": engines}}
