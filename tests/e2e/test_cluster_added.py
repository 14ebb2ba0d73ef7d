"""Devices that are added to a cluster while it serves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from test_cluster_applied import A, B, begins, begun, serves, tenant
from told_machines import MIB

from mirage.config import ConfigError
from mirage.errors import CommandFailed
from mirage.serve.machine.cluster_admin import ClusterAdmin

pytestmark = pytest.mark.e2e
THREE = [{"name": f"d{n}", "machine": f"m{n}", "memory": f"{4 * n}MiB"} for n in (1, 2, 3)]
STARTS = "device d3: added; its server starts once its machine is there"


def test_an_added_device_serves_new_models_and_models_that_move_there(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        two = one.content["devices"]
        one.content["devices"] = [two[0], {**THREE[2]}, two[1]]
        one.machines.host["m3"] = 0
        one.writes(tenants=[A, B | {"device": "d3"}, tenant("c", device="d3")])
        expected = "b: would go from d2 to d3, and is there before it leaves"
        said = await one.apply(dry_run=True)
        assert {expected, "device d3: would be added"} <= {*said}, said
        assert "d3" not in one.machines.orders and len(one.controller.devices) == 2
        assert STARTS in await one.apply()
        assert one.applier.revision.number == 1 and serves(one) == {"d1": ["a"], "d2": ["b"]}
        for _ in range(3):
            await one.controller.step()
        assert serves(one) == {"d1": ["a"], "d2": [], "d3": ["b", "c"]}, one.lines
        assert sorted(one.machines.starts("d3")) == ["b", "c"]
        assert {"d1", "d2", "d3"} == one.machines.heard["router@m3"][-1][1]["doors"].keys()
        assert list(one.controller.devices) == list(one.controller.calls)
        assert len(json.loads(one.state.read_text())["configuration"]["devices"]) == 3
        assert await one.apply() == ("nothing differs from what holds",)

        one.writes(tenants=[A, B | {"device": "d3"}])
        assert "d3 on m3: c: removed" in await one.apply(), "it is a device as any other"
        one.machines.gone = {"m3"}
        for _ in range(3):
            await one.controller.step()
        assert "b" in {*serves(one)["d1"], *serves(one)["d2"]}, one.lines

    asyncio.run(run())


def test_a_device_alone_is_a_change_and_its_machine_may_join_later(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        admin = ClusterAdmin(one.controller, one.applier)
        one.content["devices"] = [*one.content["devices"], THREE[2]]
        one.writes()
        late = "machine m3: away, and will hear of it once they answer"
        assert await one.apply() == (STARTS, late)
        assert "d3" in admin._devices
        await one.controller.step()
        assert "d3" not in one.machines.orders and not any("lost" in said for said in one.lines)
        one.machines.host["m3"] = 0
        one.writes(tenants=[A, B, tenant("c", device="d3")])
        await one.apply()
        await one.controller.step()
        await one.controller.step()
        assert serves(one)["d3"] == begins(one, "d3")["d3"] == ["c"], one.lines
        one.machines.gone = {"m1", "m2"}
        for _ in range(3):
            await one.controller.step()
        assert serves(one)["d3"] == ["a", "b", "c"], one.lines

    asyncio.run(run())


def test_what_an_added_device_cannot_serve_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        one.machines.host = {"m1": 100 * MIB, "m2": 100 * MIB}
        await one.controller.step()
        one.content["devices"] = [*one.content["devices"], THREE[2]]
        one.writes(tenants=[A, B, tenant("c", device="d3", share=0.1)])
        with pytest.raises(ConfigError, match=r"'d3': tenant 'c': it does not fit: it needs"):
            await one.apply()
        one.machines.refuses = {"d2": "no room on its disk"}
        one.writes(tenants=[A, B | {"priority": 2}, tenant("c", device="d3")])
        with pytest.raises(CommandFailed, match="no room on its disk"):
            await one.apply()
        assert len(one.controller.devices) == 2 and "d3" not in one.machines.orders
        bytes_of_one = one.plan.known(one.probe).facts.models[0].parameters
        one.machines.host["m1"] = (4 + 20) * MIB + bytes_of_one * 3 // 2
        on_m1 = {"name": "d3", "machine": "m1", "kind": "host", "memory": "20MiB"}
        one.content["devices"][-1] = on_m1
        one.machines.refuses = {}
        await one.controller.step()
        one.writes(tenants=[A, B, tenant("c", device="d3")])
        with pytest.raises(CommandFailed, match="c does not come to d3: its weights take"):
            await one.apply()

    asyncio.run(run())
