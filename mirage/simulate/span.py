"""Consecutive steps whose duration grows evenly, and the time of any number of them, in
picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage.simulate.roofline import CostBound, Work


@dataclass(slots=True)
class Span:
    """Steps that are under way: the first takes `first_ps`, each later one `growth_ps` more than
    the last.

    Steps of 10, 12, 14 and 16 from 100 on; an event at 125 ends the span after the third one:

    >>> span = Span(begin=100, first_ps=10, growth_ps=2)
    >>> span.take(4)
    >>> span.end
    152
    >>> span.cut(125)
    >>> span.steps, span.end
    (3, 136)
    """

    begin: int = 0
    first_ps: int = 0
    growth_ps: int = 0
    steps: int = 0
    end: int = 0

    def take(self, steps: int) -> None:
        """Make the span last `steps` steps."""
        self.steps = steps
        self.end = self.begin + total(self.first_ps, self.growth_ps, steps)

    def cut(self, now: int) -> None:
        """End the span with the step that is under way at `now`."""
        if self.steps > 1:
            first, growth = self.first_ps, self.growth_ps
            self.take(max(1, steps_until(first, growth, self.steps, now - self.begin)))


def largest(bounds: Sequence[CostBound], work: Work) -> tuple[CostBound, int]:
    """The largest bound of a step, and its picoseconds; among equal ones the bound that grows
    fastest.
    """
    bound, longest = bounds[0], bounds[0].at(work)
    for other in bounds[1:]:
        time = other.at(work)
        if (time, other.context) > (longest, bound.context):
            bound, longest = other, time
    return bound, longest


def total(first: int, growth: int, steps: int) -> int:
    """Picoseconds of `steps` steps: the first takes `first`, each later one `growth` more than the
    last.
    """
    return steps * first + growth * (steps * (steps - 1) // 2)


def steps_until(first: int, growth: int, most: int, span: int) -> int:
    """The fewest steps, at most `most`, that take at least `span` picoseconds.

    >>> [steps_until(10, 2, 4, span) for span in (22, 23, 999)]  # 10, 22, 36, 52
    [2, 3, 4]
    """
    if total(first, growth, most) < span:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if total(first, growth, middle) >= span:
            high = middle
        else:
            low = middle + 1
    return low


def steps_alike(bounds: Sequence[CostBound], bound: CostBound, work: Work, most: int) -> int:
    """Number of steps, at most `most`, during which `bound`, the largest now, stays the largest of
    `bounds`.

    Each step adds one token in KV for each sequence of `work`. Two sequences with 10 tokens:
    compute takes 100, memory 80 and 2 more for each step, which is longer from the 12th step on:

    >>> compute, memory = CostBound(100, 0, 0, 0, 0), CostBound(70, 0, 1, 0, 0)
    >>> steps_alike((compute, memory), compute, Work(sequences=2, context=10), 99)
    11
    """
    size = work.sequences
    steps = most
    for other in bounds:
        faster = (other.context - bound.context) * size
        if faster > 0:
            steps = min(steps, (bound.at(work) - other.at(work)) // faster + 1)
    return steps
