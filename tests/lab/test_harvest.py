"""Gain of a peer's memory over host memory, in the form of `benchmarks.harvest`'s tables."""

from __future__ import annotations

import pytest

from benchmarks.harvest import __main__ as tables
from benchmarks.harvest import figures

pytestmark = pytest.mark.lab


def test_tables_have_a_row_for_each_size_and_are_markdown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables.main()
    parts = capsys.readouterr().out.strip().split("\n\n")
    sizes = (len(tables.COPIES), len(figures.ENTRIES), 2 * len(figures.BATCHES))
    assert [len(part.splitlines()) - 2 for part in parts] == list(sizes)
    for part in parts:
        head, *rows = part.splitlines()
        assert all(row.count("|") == head.count("|") for row in rows)


def test_a_peer_gains_more_the_more_of_a_large_step_it_brings() -> None:
    few, half, whole = (figures.expert_gains(share)[4] for share in (0.125, 0.5, 1.0))
    assert 0 <= few <= half <= whole * 1.01


def test_larger_copies_come_nearer_to_the_ratio_of_the_links() -> None:
    links = figures.peer().bytes_per_s / figures.host().bytes_per_s
    ratios = [figures.reload_ratio(nbytes) for nbytes in tables.COPIES]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] == pytest.approx(links, rel=0.01)
