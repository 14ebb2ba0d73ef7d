"""`mirage why` of a real server with fake engines: its route, its words, its metrics."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operated import Operated, content, operated, tenant

pytestmark = pytest.mark.e2e

LENDING = {"FAKE_ENGINE": "lends:b", "FAKE_LAYERS": "10"}
"""Eight requests of b take what a has; a has ten layers, and steps that wait for those away."""


@pytest.fixture(scope="module")
def lending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    told = content("a", "b", remap={"rest_s": 0})
    told["tenants"] = [tenant(name, start="eager", aliases=[f"{name}:1"]) for name in "ab"]
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        folder = tmp_path_factory.mktemp("s")
        with operated(folder, Path(short), told, **LENDING) as server:
            server.server.until("lent", lambda: away(server))
            server.server.until("waited", lambda: loan(server)["tokens"])
            yield server


def away(server: Operated) -> int:
    """Number of layers of tenant `a` that are given away."""
    tenants = server.server.request("GET", "/mirage/state")[1]["tenants"]
    return int(tenants.get("a", {}).get("layers_remapped", 0))


def why(server: Operated, query: str = "") -> dict[str, Any]:
    status, told, _ = server.ask("GET", f"/why{query}")
    assert status == 200, told
    return told


def loan(server: Operated) -> dict[str, Any]:
    """The loan of `a` to `b`, as the server tells of it."""
    loans = why(server)["loans"]
    return next(one for one in loans if (one["lender"], one["borrower"]) == ("a", "b"))


def test_what_was_lent_cost_and_saved(lending: Operated) -> None:
    one = loan(lending)
    assert one["token_s"] / one["tokens"] == pytest.approx(0.8e-3)
    assert one["requests"] == 3 * one["tokens"] / 400
    assert one["bytes_now"] > 0 and one["byte_s"] > 0
    assert one["most_layers"] >= away(lending) > 0
    told = why(lending)
    saved = sum(each["preemptions_saved"] for each in told["loans"])
    assert saved == pytest.approx(5), "8 (1 - 13 / 39), of which five are whole"
    assert told["began"] == told["since"] <= told["t"]


def test_moves_are_those_of_the_state(lending: Operated) -> None:
    engines = lending.server.request("GET", "/mirage/state")[1]["engines"]
    assert why(lending, "?tenant=a")["moves"] == engines["a"]["moves"]
    assert why(lending, "?tenant=b:1")["moves"] == engines["b"]["moves"]
    every = why(lending)["moves"]
    assert any(move["from"] == "layers of a" and move["to"] == "KV memory of b" for move in every)


def test_the_command_says_it_in_words(lending: Operated) -> None:
    said = lending.mirage("why", "b")
    assert said.returncode == 0, said.stderr
    assert re.search(
        r"^  a lent b up to \d layers \(0\.\d MiB\) and 0\.\d MiB of idle KV memory for .*, and "
        r"still does \(.*growth beyond.*\): \+0\.8 ms a token on \d+ requests; "
        r"b saved (about \d preemptions?|no preemption)$",
        said.stdout,
        re.MULTILINE,
    ), said.stdout
    assert ", when this server began:" in said.stdout
    assert "layers of a to KV memory of b" in said.stdout


def test_json_is_what_the_route_tells(lending: Operated) -> None:
    told = json.loads(lending.mirage("why", "a:1", "--last", "10m", "--json").stdout)
    again = why(lending, "?tenant=a&last=600")
    assert told.keys() == {"schema_version", *again.keys()} and told["moves"] == again["moves"]
    names = [(one["lender"], one["borrower"]) for one in told["loans"]]
    assert names == [(one["lender"], one["borrower"]) for one in again["loans"]]


def test_pages(lending: Operated) -> None:
    whole, found, skip = why(lending), [], 0
    while skip is not None:
        page = why(lending, f"?skip={skip}&limit=1")
        assert len(page["loans"]) == 1
        found += page["loans"]
        skip = page["next_skip"]
    assert [one["borrower"] for one in found] == [one["borrower"] for one in whole["loans"]]


def test_metrics_are_by_lender_and_borrower(lending: Operated) -> None:
    text = lending.server.request("GET", "/metrics")[1].decode()
    pair = re.escape('{borrower="b",lender="a"}') + r" (\S+)$"

    def value(name: str) -> float:
        found = re.search(f"^{name}{pair}", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    tokens = value("mirage_loan_tokens_total")
    assert value("mirage_loan_token_seconds_total") / tokens == pytest.approx(0.8e-3)
    assert value("mirage_loan_byte_seconds_total") > 0
    assert value("mirage_loan_preemptions_saved_total") > 0
    assert re.search(r'^mirage_requests_started_total\{tenant="a"\} \d', text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["why", "x"], "no tenant 'x' here: use one of a, b"),
        (["why", "--last", "soon"], "--last 'soon': write a time"),
        (["why", "--last", "999h"], "--last '999h': write a time"),
        (["why", "--socket", "/nowhere"], "no server listens at /nowhere"),
    ],
)
def test_what_cannot_be_told_is_one_line(lending: Operated, words: list[str], line: str) -> None:
    done = lending.mirage(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and line in done.stderr


@pytest.mark.parametrize(
    "query", ["?last=-1", "?last=soon", "?limit=0", "?limit=501", "?skip=-1", "?skip=nan"]
)
def test_a_query_that_is_none_is_refused(lending: Operated, query: str) -> None:
    status, told, _ = lending.ask("GET", f"/why{query}")
    assert status == 400 and "write" in told["error"]["message"]
