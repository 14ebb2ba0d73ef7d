"""Answers of one engine: how long they are, and by how much the running ones will grow. Pure."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

LATELY = 100
"""Answers that say how long the next ones will be; twice as many before older ones count half."""


class Answered(NamedTuple):
    """Counts of one engine; none ever falls."""

    tokens: int = 0
    """Tokens decoded, those of answers under way included."""
    ended: int = 0
    """Requests that began to run and have ended."""


class AnswerLengths:
    """Mean length of the answers that an engine lately gave."""

    def __init__(self) -> None:
        self._forgotten = Answered()

    def mean(self, answered: Answered) -> float:
        """Tokens of an answer.

        Tokens of answers under way count, and one of these as ended: short answers end first, and
        would say too little alone.
        """
        tokens, ended = (now - old for now, old in zip(answered, self._forgotten, strict=True))
        if ended >= 2 * LATELY:
            old = self._forgotten
            self._forgotten = Answered(old.tokens + tokens // 2, old.ended + ended // 2)
        return tokens / (ended + 1)


def growth_to_come(used_blocks: int, answers_blocks: int) -> int:
    """KV blocks by which running requests, which use `used_blocks`, are expected to grow at most.

    `answers_blocks`: those of as many answers of mean length. Requests that began together grow
    together, and of those that began one after the other some end while others grow. If each of r
    requests ends in any step with the chance 1/m, m being the mean length, then t steps later they
    use (used + r t) exp(-t/m). That is most after t = m - used/r, and never more than now if
    they use as much as answers of mean length.
    """
    if used_blocks >= answers_blocks:
        return 0
    return int(answers_blocks * exp(used_blocks / answers_blocks - 1)) - used_blocks
