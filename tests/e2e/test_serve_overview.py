"""The overview of a real server with fake engines, at the router and at the admin socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from operated import Operated, content, operated, tenant
from short_folders import short_of_module  # noqa: F401

from mirage.serve.overview.forms import OverviewTold

pytestmark = pytest.mark.e2e

LENDING = {"FAKE_ENGINE": "lends:b", "FAKE_LAYERS": "10"}
"""As in test_serve_why.py: b takes what a has, and a has ten layers."""


@pytest.fixture(scope="module")
def lending(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Operated]:
    told = content("a", "b", remap={"rest_s": 0})
    told["tenants"] = [tenant(name, start="eager") for name in "ab"]
    told["tenants"].append(tenant("c"))
    with operated(tmp_path_factory.mktemp("s"), short, told, **LENDING) as server:
        server.until(lambda: tenants(server)["a"].layers_remapped)
        yield server


def overview(server: Operated) -> OverviewTold:
    status, told, _ = server.ask("GET", "/overview")
    assert status == 200, told
    return msgspec.convert(told, OverviewTold)


def tenants(server: Operated) -> dict[str, Any]:
    return {one.name: one for one in overview(server).tenants}


def held(memory: Any) -> int:
    return int(sum(msgspec.structs.astuple(memory)))


def test_memory_is_what_the_tenants_hold_by_role(lending: Operated) -> None:
    told = overview(lending)
    assert (told.device, told.policy, told.device_bytes) == ("host:0", "mirage", 4 << 20)
    assert (told.status, told.reason) == ("ok", "")
    statuses = {one["name"]: one for one in lending.ask("GET", "/tenants")[1]["tenants"]}
    for one in told.tenants:
        assert held(one.memory) == statuses[one.name]["held_bytes"]
        assert one.share_bytes == statuses[one.name]["share_bytes"]
    a, b, c = (tenants(lending)[name] for name in "abc")
    assert 0 < a.layers_remapped < a.layers == 10
    assert b.memory.kv_used > 0 and a.memory.weights < 10 * 65536
    assert (c.state, held(c.memory), c.layers, c.rates) == ("stopped", 0, 0, None)


def test_rates_are_measured_while_an_engine_reports(lending: Operated) -> None:
    lending.until(lambda: tenants(lending)["b"].rates)
    rates = tenants(lending)["b"].rates
    assert rates.tokens >= 0 and rates.requests >= 0


def test_loans_are_decisions_with_their_reasons(lending: Operated) -> None:
    (one,) = (one for one in overview(lending).decisions if one.text.startswith("a lends b"))
    assert one.tenant == "b" and "of layers" in one.text
    assert one.why == "Running requests need more than the share of their model."


def test_an_act_is_a_decision_and_latencies_come_with_requests(lending: Operated) -> None:
    assert lending.ask("POST", "/tenants/a/stop")[0] == 202
    lending.until(lambda: lending.state("a") == "stopped")
    decisions = overview(lending).decisions
    assert "a is stopped, and was draining" in [one.text for one in decisions]
    assert [one.t for one in decisions] == sorted((one.t for one in decisions), reverse=True)
    lending.server.request(
        "POST", "/v1/completions", {"model": "b", "prompt": "drip", "max_tokens": 3, "stream": True}
    )
    lending.until(lambda: tenants(lending)["b"].latencies.requests)
    found = tenants(lending)["b"].latencies
    assert found.ttft_p50_s <= found.ttft_p99_s and found.tpot_p50_s > 0


def test_the_router_tells_the_same(lending: Operated) -> None:
    status, told = lending.server.request("GET", "/mirage/overview")
    assert status == 200
    public = msgspec.convert(told, OverviewTold)
    assert [one.name for one in public.tenants] == ["a", "b", "c"]
    assert lending.server.request("GET", "/mirage")[0] == 200
