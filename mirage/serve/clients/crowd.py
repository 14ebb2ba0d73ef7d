"""Number of open connections, by the address of the other end. Pure."""

from __future__ import annotations

from collections import Counter


class Crowd:
    """Count of connections, with limits: `most` in all, `most_per_peer` from one address."""

    def __init__(self, most: int, most_per_peer: int) -> None:
        self.most, self.most_per_peer = most, most_per_peer
        self.count = 0
        self._of: Counter[str] = Counter()

    def refuses(self, peer: str) -> str:
        """Name of the limit that one more connection of `peer` would exceed; empty if none."""
        if self.count >= self.most:
            return "all"
        return "peer" if self._of[peer] >= self.most_per_peer else ""

    def comes(self, peer: str) -> None:
        """Count one more connection of `peer`. Call `goes` at its end."""
        self.count += 1
        self._of[peer] += 1

    def goes(self, peer: str) -> None:
        """Count one connection of `peer` less."""
        self.count -= 1
        self._of[peer] -= 1
        if not self._of[peer]:
            del self._of[peer]
