"""The worked examples in docstrings say what the code does."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from mirage.control import step_times
from mirage.simulate import batch, span

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("module", [step_times, batch, span], ids=lambda m: m.__name__)
def test_examples_are_true(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 3 and not done.failed


def test_the_span_that_stepping_tells_of() -> None:
    """The numbers of the example in the docstring of `StepTaker._undisturbed`: blocks for 5 steps,
    an event at 30, so an end at 30.
    """
    assert span.total(10, 2, 5) == 70
    seen = span.steps_until(10, 2, 5, 30)
    assert (seen, span.total(10, 2, seen)) == (3, 36)
    before = span.steps_until(10, 2, 5 + 1, 30) - 1
    assert (before, span.total(10, 2, before)) == (2, 22)
