"""Lines of `mirage top` for odd and large overviews."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.overview.forms import (
    Decision,
    EngineRates,
    Latencies,
    OverviewTenant,
    OverviewTold,
    RoleBytes,
)
from mirage.tools.top.view import (
    BAR,
    HEADINGS,
    bar,
    device_bar,
    duration,
    in_lines,
    legend,
    per_second,
    row_bar,
    view,
    widths,
)

pytestmark = pytest.mark.pure

MIB = 1 << 20
NOW = 1_790_000_000.0


def tenant(name: str = "chat", **changes: object) -> OverviewTenant:
    told = {
        "name": name,
        "state": "ready",
        "since": NOW - 180,
        "reason": "",
        "next": "-",
        "memory": RoleBytes(6 * MIB, 2 * MIB, MIB, MIB),
        "share_bytes": 12 * MIB,
        "layers": 8,
        "layers_remapped": 0,
        "running": 3,
        "waiting": 1,
        "rates": EngineRates(1.26, 240.4, 100.0),
        "latencies": Latencies(20, 0.0312, 1.5, 0.0098, 0.0451),
    }
    return OverviewTenant(**{**told, **changes})  # type: ignore[arg-type]


def overview(*tenants: OverviewTenant, **changes: object) -> OverviewTold:
    told = {
        "t": NOW,
        "policy": "mirage",
        "device": "host:0",
        "device_bytes": 40 * MIB,
        "status": "ok",
        "reason": "",
        "tenants": list(tenants),
        "decisions": [],
    }
    return OverviewTold(**{**told, **changes})  # type: ignore[arg-type]


def test_a_tenant_is_a_row_of_words() -> None:
    (row,) = view(overview(tenant())).rows
    assert row.cells == (
        *("chat", "ready", "", "10.0 MiB", "1.3", "240"),
        *("31 ms", "9.8 ms", "3+1"),
    )
    assert len(row.cells) == len(HEADINGS)
    assert row.detail == (
        "chat is ready for 3 min, share 12.0 MiB, last minute 20 requests, P99 TTFT 1.5 s, TPOT "
        "45 ms"
    )


def test_what_is_not_known_is_a_dash() -> None:
    one = tenant(rates=None, latencies=Latencies(0), share_bytes=None, next="ready in 3 s")
    (row,) = view(overview(one)).rows
    assert row.cells[4:8] == ("-", "-", "-", "-")
    assert row.detail == "chat is ready for 3 min, share auto, ready in 3 s"


def test_the_reason_and_the_layers_that_are_away_are_told() -> None:
    one = tenant(state="failed", layers_remapped=2, reason="no room", latencies=Latencies(0))
    (row,) = view(overview(one)).rows
    assert row.detail == ("chat is failed for 3 min, share 12.0 MiB, 2 of 8 layers away: no room")


def test_the_device_is_the_sum_of_its_tenants() -> None:
    found = view(overview(tenant("a"), tenant("b")), UTC)
    assert found.title == "host:0  policy mirage  20.0 MiB of 40.0 MiB held  14:13:20"
    assert found.device == RoleBytes(12 * MIB, 4 * MIB, 2 * MIB, 2 * MIB)
    assert legend(found)[0] == "weights 12.0 MiB" and legend(found)[-1] == "held by nobody 20.0 MiB"
    assert device_bar(found, 80) == [24, 8, 4, 4, 40]


def test_a_failed_device_is_in_the_first_line() -> None:
    found = view(overview(status="failed", reason="GPU 0 has failed: ECC"))
    assert found.title.endswith("DEVICE failed: GPU 0 has failed: ECC")


def test_without_tenants_all_is_empty() -> None:
    found = view(overview())
    assert found.rows == [] and found.device == RoleBytes() and device_bar(found, 10)[-1] == 10


def test_bars_of_tenants_are_as_wide_as_the_largest() -> None:
    small = tenant("small", memory=RoleBytes(5 * MIB))
    rows = view(overview(tenant(), small)).rows
    assert row_bar(rows[0], 10) == [6, 2, 1, 1] and row_bar(rows[1], 10) == [5, 0, 0, 0]


def test_decisions_have_their_time_and_reason() -> None:
    told = [Decision(NOW, "a", "b lends a 1.0 MiB", "a grows"), Decision(NOW - 60, "b", "b is up")]
    assert view(overview(decisions=told), UTC).decisions == [
        "14:13:20  b lends a 1.0 MiB (a grows)",
        "14:12:20  b is up",
    ]


@given(st.lists(st.integers(0, 10**12), max_size=6), st.integers(0, 10**13), st.integers(0, 200))
def test_cells_of_a_bar_are_never_more_than_its_width(
    parts: list[int], whole: int, width: int
) -> None:
    cells = bar(parts, whole, width)
    assert len(cells) == len(parts) and all(cell >= 0 for cell in cells)
    assert sum(cells) <= width
    if parts and sum(parts) >= whole and sum(parts):
        assert sum(cells) == width


@pytest.mark.parametrize("terminal", [80, 81, 100, 160, 300])
def test_columns_fill_the_terminal_and_no_more(terminal: int) -> None:
    found = widths(terminal)
    assert len(found) == len(HEADINGS) and sum(found) <= terminal - 2
    assert found[BAR] >= 13


def test_a_terminal_that_is_too_narrow_has_the_least_columns() -> None:
    assert widths(40) == widths(0) == widths(79)


def test_words_of_the_legend_stay_whole() -> None:
    words = ["weights 12.0 MiB", "KV free 1.0 MiB", "held by nobody 20.0 MiB"]
    assert in_lines(words, 80) == [[0, 1, 2]]
    assert in_lines(words, 40) == [[0, 1], [2]]
    assert in_lines(words, 5) == [[0], [1], [2]]


@given(st.none() | st.floats(0, 99_999))
def test_rates_are_short(value: float | None) -> None:
    assert len(per_second(value)) <= 5


@given(st.none() | st.floats(0, 99_999))
def test_latencies_are_short(value: float | None) -> None:
    assert len(duration(value)) <= 7


def test_numbers_do_not_jump_where_their_form_changes() -> None:
    assert [per_second(v) for v in (9.94, 9.96, 0)] == ["9.9", "10", "0.0"]
    assert [duration(v) for v in (0.00994, 0.00996, 0.9994, 0.9996, 1000)] == [
        *("9.9 ms", "10 ms", "999 ms", "1.0 s", "1000 s"),
    ]
