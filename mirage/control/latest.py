"""A value that is made again only if something that it is made of is another. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The newest value of `make`, a pure function.

    As `lru_cache(maxsize=1)`, but arguments are compared, the same objects at once, and none is
    hashed: to hash a tenant's row or all rules takes longer than to see that they are the same.
    They must not change afterwards, nor the value.

    >>> doubled = Latest(lambda values: [2 * value for value in values])
    >>> doubled.of((1, 2)) is doubled.of((1, 2)), doubled.of((1, 3))
    (True, [2, 6])
    """

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._made: tuple[tuple[Any, ...], T] | None = None

    def of(self, *arguments: Any) -> T:
        """`make` of them."""
        made = self._made
        if made is None or made[0] != arguments:
            made = self._made = arguments, self._make(*arguments)
        return made[1]
