"""The rows of `make gpu-many`, measured with engines on host memory."""

from __future__ import annotations

import time

import pytest

from benchmarks.gpu import many
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.many import Asked

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def no_driver(*_: object, **__: object) -> None:
    raise AssertionError("the engines open their drivers themselves")


def test_models_sleep_and_wake_and_say_the_same() -> None:
    bench = Bench(dry=True, open=no_driver, end=time.monotonic() + 500)  # type: ignore[arg-type]
    first, texts = many.served(bench)
    assert first.holds, first.value
    assert texts.holds, texts.value
    states = [one["state"] for one in first.details["asked"]]
    assert len(states) == many.ROUNDS * many.ASKED * len(many.NAMES)
    assert states.count("sleeping") >= many.ROUNDS


def test_a_text_that_differs_and_a_model_that_never_slept_are_told() -> None:
    asked = [Asked("one", "ready", 0.1, "a"), Asked("one", "ready", 0.2, "b")]
    first, texts = many.rows("", asked, 0, {})
    assert (first.holds, texts.holds, texts.value) == (False, False, "1")
