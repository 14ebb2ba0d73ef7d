"""Length of the answers of one engine, and the expected growth of the running ones. Pure."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

LATELY = 100
"""Number of newest answers over which the mean length is taken, roughly: once twice as many have
been counted, half of the counts is forgotten."""


class Answered(NamedTuple):
    """Counts of one engine since its start. They never decrease."""

    tokens: int = 0
    """Tokens decoded, those of unfinished answers included."""
    ended: int = 0
    """Requests that began to run and have ended."""


class AnswerLengths:
    """Mean length of the answers that an engine lately gave."""

    def __init__(self) -> None:
        self._forgotten = Answered()

    def mean(self, answered: Answered) -> float:
        """Return the mean number of tokens of an answer, by the engine's counts since its start. A
        call may forget half of the counts (`LATELY`).

        Tokens of unfinished answers count, and all unfinished answers together count as one that
        has ended. Short answers end first, so ended answers alone would give too low a mean.
        """
        tokens, ended = (now - old for now, old in zip(answered, self._forgotten, strict=True))
        if ended >= 2 * LATELY:
            old = self._forgotten
            self._forgotten = Answered(old.tokens + tokens // 2, old.ended + ended // 2)
        return tokens / (ended + 1)


def growth_to_come(used_blocks: int, answers_blocks: int) -> int:
    """Return the number of KV blocks by which running requests, which use `used_blocks`, are
    expected to grow at most.

    `answers_blocks` is the number of blocks of answers of mean length, one for each running
    request. Requests that began together grow together; of requests that began one after the other,
    some end while others grow. If each of r requests ends in any step with the probability 1/m,
    where m is the mean length, then t steps later they use (used + r t) exp(-t/m). The maximum is
    at t = m - used/r; it is at t = 0, without growth, if they use as much as answers of mean
    length, or more.
    """
    if used_blocks >= answers_blocks:
        return 0
    return int(answers_blocks * exp(used_blocks / answers_blocks - 1)) - used_blocks
