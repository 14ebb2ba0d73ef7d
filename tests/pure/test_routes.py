"""The table of the server's routes, and the page docs/routes.md that is made of it."""

from pathlib import Path

import pytest

from mirage.serve.access.ring import Need, need_of
from mirage.serve.api.routes import (
    FORM_ROUTES,
    JSON_ROUTES,
    NEWER,
    OTHERS,
    REFUSED_ROUTES,
    ROUTES,
    RouteWay,
)
from mirage.serve.api.routes_page import page

pytestmark = pytest.mark.pure


def test_the_page_is_what_the_table_says() -> None:
    written = (Path(__file__).parents[2] / "docs" / "routes.md").read_text()
    assert written == page(), "make it anew: python -m mirage.serve.api.routes_page docs/routes.md"


def test_each_route_is_in_one_list_with_a_reason_in_one_sentence() -> None:
    every = ROUTES | OTHERS
    own = {path for path, decision in every.items() if decision.way is RouteWay.OWN}
    lists = (set(JSON_ROUTES), set(FORM_ROUTES), set(REFUSED_ROUTES), own)
    assert set().union(*lists) == every.keys() and sum(map(len, lists)) == len(every)
    assert len(every) == len(ROUTES) + len(OTHERS), "none is in both tables"
    assert all(path.startswith("/") for path in every) and ROUTES.keys() >= NEWER
    for decision in every.values():
        assert decision.why and not decision.why.endswith(".") and ". " not in decision.why


def test_a_refused_route_needs_a_key_and_no_right() -> None:
    assert {need_of(path) for path in REFUSED_ROUTES} == {Need.ANY_KEY}
    assert {need_of(path) for path in OTHERS} == {Need.ANY_KEY}
    assert need_of("/health") is Need.ADMIN and need_of("/metrics") is Need.METRICS
