"""The page of a decoding batch, made of given results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.decode import html, pictures
from benchmarks.decode.metrics import WHERE
from benchmarks.decode.orders import NAMES

pytestmark = pytest.mark.lab


def figures(**changes: float | None) -> dict[str, Any]:
    """Figures of one policy: each of 100 steps computes for 2 ms and waits for 3 ms."""
    values: dict[str, float | None] = {
        **{metric.key: 1.0 for metric in html.METRICS},
        "steps": 100,
        "duration": 0.5,
        "waited_s": 0.3,
        **{f"blocks_from_{where}": 25 for where in WHERE},
    }
    return {
        key: value if value is None else {"mean": value, "min": value, "max": value}
        for key, value in (values | changes).items()
    }


def given(**policies: dict[str, Any]) -> dict[str, Any]:
    return {
        "policies": list(policies),
        "seeds": [0],
        "figures": policies,
        "results": {name: {"figures": part} for name, part in policies.items()},
    }


def widths(figure: Any) -> dict[str, list[float]]:
    """Widths of the bars of a figure, by the meaning of their colour."""
    axes = figure.axes[0]
    return {
        bars.get_label(): [bar.get_width() for bar in bars]
        for bars in axes.containers
        if bars.get_label()
    }


def test_every_policy_is_said_to_be_something() -> None:
    assert set(html.MEANING) == set(NAMES)


def test_hits_are_parts_of_all_blocks() -> None:
    some = figures(blocks_from_device=60, blocks_from_early=0, blocks_from_host=20)
    none = figures(**{f"blocks_from_{where}": 0 for where in WHERE})
    found = widths(pictures.hits_by_tier(given(lru=some, oracle=none)))
    assert found["on the device"] == pytest.approx([100 * 60 / 105, 0])
    assert "came ahead of need" not in found, "nobody had any"
    assert sum(part[0] for part in found.values()) == pytest.approx(100)


def test_a_stall_is_what_a_step_does_not_compute() -> None:
    found = widths(pictures.stalls(given(lru=figures(), oracle=figures(waited_s=0.0))))
    assert found["waiting for blocks"] == pytest.approx([3.0, 0.0])
    assert found["computing"] == pytest.approx([2.0, 5.0])


def test_what_crossed_the_links_is_in_gib() -> None:
    some = figures(kv_bytes_up=3 << 30, kv_bytes_down=1 << 29)
    found = widths(pictures.traffic(given(lru=some)))
    assert found == {"up, to the device": [3.0], "down, from the device": [0.5]}


def test_what_is_unknown_is_a_dash() -> None:
    rows = html.rows(given(lru=figures(), oracle=figures(saved_s=None)))
    saved = next(row for row in rows if row.label.startswith("computing time saved"))
    assert [cell.text for cell in saved.cells] == ["1.0", "–"]
