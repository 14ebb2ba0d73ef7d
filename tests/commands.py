"""Commands that run each test, and draws of one run from a product of families and seeds.

Marks decide. ``make test`` runs what has neither `slow` nor `rare`, ``make slow`` what is `slow`,
and ``make long`` what is `rare` or lies in tests/long. ``make long`` runs once more, in full, what
a shorter run does only in part: all examples of Hypothesis, all values of what is `drawn`, all
files of what is `one_of` several that start engines for long.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

COMMANDS = ("test", "slow", "long")
CHOICE = "MIRAGE_TESTS"
"""The environment variable that names the command; without it all tests that are named run."""
SEED = "MIRAGE_TEST_SEED"
"""The one that repeats a draw."""
IN_PART = frozenset({"drawn", "one_of", "hypothesis"})
LEAST_EXAMPLES = 25


def commands_of(marks: Collection[str]) -> frozenset[str]:
    """Commands that run a test with these marks; there is always one."""
    if {"long", "rare"} & set(marks):
        return frozenset({"long"})
    first = "slow" if "slow" in marks else "test"
    return frozenset({first, "long"} if IN_PART & set(marks) else {first})


def drawn(seed: str, product: str, values: Sequence[object]) -> object:
    """One of `values`; `product` names the test and its other parameters."""
    return random.Random(f"{seed} {product}").choice(values)


def left_out(
    seed: str, tests: Mapping[str, tuple[str, object]], command: str | None
) -> frozenset[str]:
    """Tests that were not drawn, by id; each is given with its product and its value in it."""
    if command in (None, "long"):
        return frozenset()
    values: dict[str, list[object]] = {}
    for product, value in tests.values():
        values.setdefault(product, []).append(value)
    chosen = {product: drawn(seed, product, each) for product, each in values.items()}
    return frozenset(name for name, (product, value) in tests.items() if chosen[product] != value)


def scaled(examples: int, command: str | None) -> int:
    """Number of examples that are tried of the `examples` that ``make long`` tries."""
    if command == "long":
        return examples
    return max(examples // 4, min(examples, LEAST_EXAMPLES))
