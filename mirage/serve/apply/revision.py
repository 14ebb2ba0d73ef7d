"""Revision of operators' wishes: a number that each order and each apply raises. Pure."""

from __future__ import annotations


class Revision:
    """Number that only grows, from 0."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def tag(self) -> str:
        """Number in the form of an ``ETag`` header."""
        return f'"{self.number}"'

    def grows(self) -> None:
        """Raise the number, because operators want something else from now on."""
        self.number += 1

    def is_meant(self, condition: str) -> bool:
        """True if an ``If-Match`` header with this `condition` accepts the present revision."""
        return condition in ("*", self.tag)
