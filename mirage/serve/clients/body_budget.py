"""Budget of bytes for the request bodies that this process holds. Pure."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from mirage.serve.api.openai import ApiError
from mirage.units import size

RETRY_S = 1.0
"""Seconds after which a body that was refused for want of room may be sent again."""


class BodyBudget:
    """Budget of `most` bytes for the bodies of all requests together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.refused = 0

    def room(self) -> BodyRoom:
        """Room of one request, to be used as a context: at its end the bytes are free again."""
        return BodyRoom(self)


class BodyRoom:
    """Part of a budget that one request has while its context lasts."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_now(0)

    def needs(self, wanted: int) -> None:
        """Take bytes of the budget until the request has at least `wanted`. Raises `ApiError` if
        the budget has no room for them.
        """
        if wanted <= self.bytes:
            return
        budget = self._budget
        if budget.held - self.bytes + wanted > budget.most:
            budget.refused += 1
            raise no_room(budget.most)
        self.is_now(wanted)

    def is_now(self, taken: int) -> None:
        """Set the bytes that are held to `taken`, even if that exceeds the budget."""
        self._budget.held += taken - self.bytes
        self.bytes = taken


def no_room(most: int) -> ApiError:
    """Answer to a request whose body has no room in a budget of `most` bytes."""
    message = (
        f"no room for this body beside those of others ({size(most)} for all): try again later"
    )
    return ApiError(503, message, code="no_room_for_body", wait_s=RETRY_S)
