"""The revision of what operators want: one number, which each act and each apply raises. Pure."""

from __future__ import annotations


class Revision:
    """A number that only grows."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def tag(self) -> str:
        """The revision as an ``ETag``."""
        return f'"{self.number}"'

    def grows(self) -> None:
        """Operators want something else from now on."""
        self.number += 1

    def is_meant(self, condition: str) -> bool:
        """True if an ``If-Match`` asks for this one, or for any."""
        return condition in ("*", self.tag)
