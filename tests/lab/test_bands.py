"""A band of a claim is judged by the confidence interval of a mean over seeds."""

from __future__ import annotations

import pytest

from benchmarks.claims.judging import Band, Results

pytestmark = pytest.mark.lab

LOW, HIGH = 10.0, 20.0


def judged(values: list[float], band: tuple[float | None, float | None] = (LOW, HIGH)):
    """Judgement of a band whose measured values, one for each seed, are `values`."""
    found = iter(values)
    row = Band("B0", "a figure", "10 to 20", band=band, measure=lambda _: next(found))
    return row.evaluate(Results(range(len(values)), {}))


@pytest.mark.parametrize(
    ("values", "word", "holds"),
    [
        ([14.0, 15.0, 16.0], "inside", [3, 3]),
        ([9.0, 12.0, 15.0], "open", [2, 3]),
        ([8.0, 9.0, 11.0], "open", [1, 3]),
        ([4.0, 5.0, 6.0], "outside", [0, 3]),
        ([24.0, 25.0, 26.0], "outside", [0, 3]),
    ],
)
def test_a_band_holds_if_all_of_the_interval_is_in_it(
    values: list[float], word: str, holds: list[int]
) -> None:
    row = judged(values)
    low, high = row["interval"]
    assert low < row["measured"] < high
    assert (row["judged"], row["holds"]) == (word, holds)


def test_an_open_side_bounds_nothing() -> None:
    assert judged([1e9, 1.001e9], (LOW, None))["judged"] == "inside"
    assert judged([-1e9, -1.001e9], (None, HIGH))["judged"] == "inside"


def test_equal_values_have_an_interval_of_no_width() -> None:
    row = judged([0.0] * 10, (0, 0))
    assert (row["interval"], row["judged"], row["holds"]) == ([0, 0], "inside", [10, 10])


def test_one_seed_has_no_interval() -> None:
    row = judged([15.0])
    assert (row["interval"], row["judged"], row["holds"]) == (None, "inside", [1, 1])
