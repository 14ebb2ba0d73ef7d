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
"""The environment variable with the seed of all draws; an earlier seed repeats them."""
IN_PART = frozenset({"drawn", "one_of", "hypothesis"})
LEAST_EXAMPLES, MOST_EXAMPLES = 25, 250


def commands_of(marks: Collection[str]) -> frozenset[str]:
    """Commands of make that run a test with these marks; there is always one."""
    if {"long", "rare"} & set(marks):
        return frozenset({"long"})
    first = "slow" if "slow" in marks else "test"
    return frozenset({first, "long"} if IN_PART & set(marks) else {first})


def drawn(seed: str, product: str, values: Sequence[object]) -> object:
    """One of `values`, chosen by the seed. `product` names the test and its other parameters, so
    each product draws for itself.
    """
    return random.Random(f"{seed} {product}").choice(values)


def left_out(
    seed: str, tests: Mapping[str, tuple[str, object]], command: str | None
) -> frozenset[str]:
    """Ids of the tests that this run leaves out because their value was not drawn. Each test is
    given with its product and its value.
    """
    if command in (None, "long"):
        return frozenset()
    values: dict[str, list[object]] = {}
    for product, value in tests.values():
        values.setdefault(product, []).append(value)
    chosen = {product: drawn(seed, product, each) for product, each in values.items()}
    return frozenset(name for name, (product, value) in tests.items() if chosen[product] != value)


def scaled(examples: int, command: str | None) -> int:
    """Number of examples that Hypothesis tries in this run; `examples` is the number in ``make
    long``.
    """
    if command == "long":
        return examples
    return min(max(examples // 4, min(examples, LEAST_EXAMPLES)), MOST_EXAMPLES)
