"""Runs of consecutive numbers: consecutive pages are mapped and released in one call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TypeVar

N = TypeVar("N", bound=int)


def runs(numbers: Iterable[N]) -> list[list[N]]:
    """`numbers` cut, in their order, into the fewest runs in which each is its predecessor plus
    one.
    """
    cut: list[list[N]] = []
    for number in numbers:
        if cut and number == cut[-1][-1] + 1:
            cut[-1].append(number)
        else:
            cut.append([number])
    return cut


def pick(numbers: Iterable[N], count: int) -> list[N]:
    """`count` of the numbers, ascending and in few runs; all of them if there are fewer.

    The shortest run that holds what is missing is taken; if none does, the longest run, and so on.
    Long runs are kept whole for later callers.
    """
    left = sorted(runs(sorted(numbers)), key=len)
    picked: list[N] = []
    while left and len(picked) < count:
        missing = count - len(picked)
        enough = min(bisect_left(left, missing, key=len), len(left) - 1)
        picked += left.pop(enough)[:missing]
    return sorted(picked)
