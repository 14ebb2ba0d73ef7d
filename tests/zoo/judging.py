"""Comparison of two runs of one family: the differences, and the reasons why a run proves nothing.
Pure.
"""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def differences(plain: Facts, ours: Facts) -> list[str]:
    """Reasons why `ours` does not prove the family against `plain`; empty if it does."""
    for name, facts in (("plain vLLM", plain), ("mirage", ours)):
        if "failed" in facts:
            return [f"{name}: {facts['failed']}"]
        if not numbers(facts["rounds"]):
            return [f"{name}: NaN in its outputs, which equals anything here"]
    found = []
    if len(plain["rounds"]) != len(ours["rounds"]):
        found.append(f"{len(ours['rounds'])} rounds, not {len(plain['rounds'])}")
    elif (where := first_difference(plain["rounds"], ours["rounds"])) is not None:
        found.append(where)
    if ours["hits"] != plain["hits"]:
        found.append(
            f"{ours['hits']:.0f} tokens came from the prefix cache, not {plain['hits']:.0f}"
        )
    return found + stillness(ours)


def stillness(ours: Facts) -> list[str]:
    """Kinds of memory that moved too little for a comparison to mean anything."""
    found = []
    movable = ours["layers"]
    if movable and (len(ours["remapped_counts"]) < min(4, movable) or not ours["bytes_streamed"]):
        found.append(f"hardly any layer moved; layers remapped: {ours['remapped_counts']}")
    if movable and not {1, 2} <= set(ours["slot_counts"]):
        found.append(f"slots: {ours['slot_counts']}")
    if ours["kv"] and (ours["grown"] < 3 or ours["shrunk"] < 3):
        found.append(f"the KV cache grew {ours['grown']} times and shrank {ours['shrunk']} times")
    return found


TIE = 1e-3
"""Two tokens whose log-probabilities differ by less may change places with the size of a batch."""


def other_texts(plain: Facts, ours: Facts) -> list[str]:
    """Differences between the answers in a storm and those of plain vLLM; empty if there are
    none.
    """
    for name, facts in (("plain vLLM", plain), ("mirage", ours)):
        if "failed" in facts:
            return [f"{name}: {facts['failed']}"]
    found = []
    for number, ((tokens, leads), said) in enumerate(
        zip(plain["texts"], ours["texts"], strict=True)
    ):
        if said is None:  # it was aborted
            continue
        pairs = enumerate(zip(tokens, said, strict=True))
        at = next((place for place, (one, other) in pairs if one != other), None)
        if at is not None and leads[at] > TIE:
            found.append(
                f"request {number} differs from token {at + 1}, which led by {leads[at]:.3f}"
            )
    return found


def numbers(outputs: Any) -> bool:
    """True if no number in nested lists is NaN. Read from JSON, two NaNs are different objects."""
    if isinstance(outputs, float):
        return outputs == outputs
    return not isinstance(outputs, list | tuple) or all(map(numbers, outputs))


def first_difference(plain: list[Any], ours: list[Any]) -> str | None:
    """Place of the first difference in the rounds that both have."""
    for i, (a, b) in enumerate(zip(plain, ours, strict=False)):
        if len(a) != len(b):
            return f"round {i + 1}: {len(b)} prompts, not {len(a)}"
        wrong = [j for j, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if wrong:
            first = wrong[0] + 1
            return f"round {i + 1}: {len(wrong)} of {len(a)} prompts differ, the first is {first}"
    return None


def hidden(plain: Facts, broken: Facts) -> str | None:
    """Reason why the run without waits shows nothing; None if its outputs differ as they must."""
    if "failed" in broken:
        return f"without waits: {broken['failed']}"
    if first_difference(plain["rounds"], broken["rounds"]) is None:
        return "without waits the outputs are the same"
    return None


def variety(facts: Facts) -> int:
    """Number of different tokens generated, over all rounds; 0 for a model that generates none."""
    rounds = facts["rounds"]
    return len({token for texts in rounds for text in texts for token in _tokens(text)})


def _tokens(text: Any) -> list[int]:
    """Tokens of a pair (tokens, log-probabilities); a pooled vector has none."""
    return list(text[0]) if text and isinstance(text[0], list) else []
