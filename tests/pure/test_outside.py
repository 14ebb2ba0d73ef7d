"""Memory that engines take beside their grants: told, and a start refused if it does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.serve.fit.outside_grants import MARGIN_BYTES, Outside
from mirage.units import GIB, MIB

pytestmark = pytest.mark.pure
TOTAL, LEDGER = 80 * GIB, 72 * GIB


def test_one_after_the_other_each_takes_what_it_adds() -> None:
    made = Outside(LEDGER)
    assert made.told(["a", "b"]) == {} and made.part("a") is None
    assert made.stepped("a", TOTAL - 36 * GIB - 2 * GIB, TOTAL, 36 * GIB, starting=False) == ""
    assert made.stepped("b", TOTAL - 72 * GIB - 5 * GIB, TOTAL, 72 * GIB, starting=False) == ""
    figures = {"device_bytes": TOTAL, "left_bytes": 3 * GIB}
    assert made.told(["a", "b"]) == {"outside": figures | {"engines": {"a": 2 * GIB, "b": 3 * GIB}}}
    made.over("b")
    assert made.left_bytes == 6 * GIB and made.part("b") is None


def test_engines_that_start_together_are_judged_when_the_last_has_stepped() -> None:
    made = Outside(LEDGER)
    assert made.stepped("a", 0, TOTAL, 36 * GIB, starting=True) == "", "the other is loading"
    assert made.told(["a"]) == {}
    assert made.stepped("b", TOTAL - 72 * GIB - 4 * GIB, TOTAL, 72 * GIB, starting=False) == ""
    assert made.part("a") == made.part("b") == 2 * GIB


def test_a_start_that_leaves_less_than_the_margin_is_refused_in_a_sentence() -> None:
    made = Outside(LEDGER)
    least = TOTAL - LEDGER - MARGIN_BYTES
    assert made.stepped("a", TOTAL - 36 * GIB - least, TOTAL, 36 * GIB, starting=False) == ""
    made.over("a")
    taken = least + 100 * MIB
    assert made.stepped("a", TOTAL - 36 * GIB - taken, TOTAL, 36 * GIB, starting=False) == (
        "412.0 MiB of the GPU are left beside device.memory (72.0 GiB) and what engines take "
        "outside their grants (7.6 GiB), and 512.0 MiB have to be: lower device.memory by 100.0 MiB"
    )


def test_a_host_tells_nothing_and_refuses_nobody() -> None:
    made = Outside(LEDGER)
    assert made.stepped("a", 0, 0, LEDGER, starting=False) == "" and made.told(["a"]) == {}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, TOTAL), st.booleans(), st.booleans()),
        max_size=40,
    )
)
def test_parts_add_up_and_are_never_negative(events: list[tuple[str, int, bool, bool]]) -> None:
    made, living = Outside(LEDGER), set[str]()
    for name, free, starting, ends in events:
        if ends or name in living:
            made.over(name)
            living.discard(name)
            continue
        living.add(name)
        why = made.stepped(name, free, TOTAL, 24 * GIB * len(living), starting)
        parts = [made.part(one) or 0 for one in living]
        assert min(parts) >= 0
        assert made.left_bytes == TOTAL - LEDGER - sum(parts)
        assert starting or bool(why) == (made.left_bytes < MARGIN_BYTES)
