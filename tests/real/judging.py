"""Comparison of two servers' answers to one request, token by token. Pure.

Rounding differs with the batch that a request happens to be in, and so may the choice between two
tokens that are nearly equally likely. From there on the two texts have nothing in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROUNDING = {"float32": 1e-3, "bfloat16": 0.5}
"""Leads that another batch may turn round, by what is computed in: natural logarithms."""


@dataclass(frozen=True)
class Said:
    """An answer: its text, its tokens, and the log-probabilities of the likeliest at each place."""

    text: str
    tokens: tuple[str, ...]
    likely: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Fork:
    """The first token in which two answers differ."""

    place: int
    lead: float
    """Difference of the two tokens' log-probabilities (natural logarithms) in the first answer;
    infinite if the other's token is not among its likeliest, or one answer just ends."""


def said(choice: Mapping[str, Any]) -> Said:
    """A choice of a chat or of a completion, asked with log-probabilities."""
    told = choice["logprobs"]
    if "message" not in choice:
        return Said(choice["text"], tuple(told["tokens"]), tuple(told["top_logprobs"]))
    tokens = tuple(each["token"] for each in told["content"])
    likely = tuple(
        {other["token"]: other["logprob"] for other in each["top_logprobs"]}
        for each in told["content"]
    )
    return Said(choice["message"]["content"], tokens, likely)


def beginning(whole: Said, tokens: int) -> Said:
    """The first `tokens` tokens of an answer; its text is not cut."""
    return Said(whole.text, whole.tokens[:tokens], whole.likely[:tokens])


def fork(one: Said, other: Said) -> Fork | None:
    """First token in which two answers differ; None if they are equal."""
    for place, (mine, yours) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if mine != yours:
            likely = one.likely[place]
            return Fork(place, likely[mine] - likely.get(yours, -math.inf))
    if len(one.tokens) != len(other.tokens):
        return Fork(min(len(one.tokens), len(other.tokens)), math.inf)
    return None


def forks(ones: Iterable[Said], others: Iterable[Said]) -> list[Fork]:
    """Forks of all pairs of answers that differ."""
    pairs = zip(ones, others, strict=True)
    return [found for one, other in pairs if (found := fork(one, other)) is not None]


def widest(found: Iterable[Fork]) -> float:
    """The largest lead that was lost; 0 without forks."""
    return max((each.lead for each in found), default=0.0)


def faults(ones: Iterable[Said], others: Iterable[Said], dtype: str) -> list[Fork]:
    """Forks that rounding in `dtype` does not explain."""
    return [each for each in forks(ones, others) if each.lead >= ROUNDING[dtype]]
