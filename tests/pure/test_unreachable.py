"""An engine whose socket no process listens on is given up after a moment."""

import pytest

from mirage.serve.ends.unreachable import SURE_S, Unreachable

pytestmark = pytest.mark.pure

GONE = {"a": "its socket is gone"}


def test_one_that_was_out_of_reach_all_along() -> None:
    seen = Unreachable()
    assert seen.look(GONE, 5.0) == {}, "it may just have ended"
    assert seen.look(GONE, 5.0 + SURE_S / 2) == {}
    assert seen.look({**GONE, "b": "nobody listens"}, 5.0 + SURE_S) == GONE


def test_one_that_was_reached_meanwhile_begins_anew() -> None:
    seen = Unreachable()
    seen.look(GONE, 0.0)
    seen.look({}, SURE_S)
    assert seen.look(GONE, 2 * SURE_S) == {}
    assert seen.look(GONE, 3 * SURE_S) == GONE
