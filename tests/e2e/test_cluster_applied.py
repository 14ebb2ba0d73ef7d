"""Configurations applied to a cluster: all machines that are there get them, or none does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from told_machines import MIB, Controlled

from mirage.config import ConfigError
from mirage.errors import CommandFailed
from mirage.serve.apply.state_file import KeptState, StateFile

pytestmark = pytest.mark.e2e

TENANT = {"model": "model", "max_model_len": 128, "share": 40}
A, B = ({"name": name, "device": device, **TENANT} for name, device in (("a", "d1"), ("b", "d2")))
AWAY = "d2 on m2: its server is away, and begins with that when it is back"


def tenant(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, **TENANT, "share": 20, **keys}


async def begun(folder: Path, **changes: Any) -> Controlled:
    one = Controlled(folder, **changes)
    await one.controller.begin()
    await one.controller.step()
    assert serves(one) == {"d1": ["a"], "d2": ["b"]}
    return one


def serves(one: Controlled) -> dict[str, list[str]]:
    """Names of the tenants that each running server serves."""
    served = one.machines.served.items()
    return {name: sorted(t["name"] for t in raw["tenants"]) for name, raw in served}


def begins(one: Controlled, *devices: str) -> dict[str, list[str]]:
    """Names of the tenants with which the next server of each device would begin."""
    return {name: sorted(one.machines.starts(name)) for name in devices or ("d1", "d2")}


def runs(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_tenants_come_change_and_go_on_all_machines(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        file = one.file.read_text()
        one.writes(tenants=[A | {"share": 30}, tenant("c", device="d1"), tenant("d", device="d2")])
        told = ("d1 on m1: c: added", "d1 on m1: a: changed")
        told += ("d2 on m2: d: added", "d2 on m2: b: removed")
        assert await one.apply(dry_run=True) == told
        assert serves(one) == {"d1": ["a"], "d2": ["b"]} and not one.state.exists()
        assert await one.apply() == told
        assert serves(one) == begins(one) == {"d1": ["a", "c"], "d2": ["d"]}
        assert [t["share"] for t in one.machines.served["d1"]["tenants"]] == [30, 20]
        assert json.loads(one.state.read_text())["configuration"]["tenants"][0]["share"] == 30
        assert one.applier.revision.number == 1
        assert await one.apply() == ("nothing differs from what holds",)

        heard = {name: len(told) for name, told in one.machines.heard.items()}
        await one.controller.step()
        assert {name: len(told) for name, told in one.machines.heard.items()} == heard
        one.file.write_text(file)
        assert "d1 on m1: c: removed" in await one.apply()
        assert serves(one) == {"d1": ["a"], "d2": ["b"]}

    runs(run())


def test_what_one_machine_refuses_none_has(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        one.writes(tenants=[A, B, tenant("c", device="d1"), tenant("d", device="d2")])
        for refuses in (True, False):
            if refuses:
                one.machines.refuses = {"d2": "no room on its disk"}
            else:
                one.machines.refuses, one.machines.refusal = {}, "no room on its disk"
            with pytest.raises(CommandFailed, match=r"'(d2|m1)': no room on its disk$"):
                await one.apply()
            assert serves(one) == begins(one) == {"d1": ["a"], "d2": ["b"]}, "d1 has it no more"
        one.machines.refusal = ""
        assert (
            not one.state.exists()
            or "tenants" not in one.state.read_text()
            or (len(json.loads(one.state.read_text())["configuration"]["tenants"]) == 2)
        )
        assert one.applier.revision.number == 0
        await one.apply()
        assert serves(one) == {"d1": ["a", "c"], "d2": ["b", "d"]}

    runs(run())


def test_a_machine_that_is_away_has_it_when_it_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path, placement={"off": True})
        one.machines.gone = {"m2"}
        await one.controller.step()
        small = tenant("c", device="d2", share=0.1)
        one.writes(placement={"off": True}, tenants=[A, small])
        with pytest.raises(ConfigError, match=r"'d2': tenant 'c': it does not fit: it needs"):
            await one.apply()
        c, d = tenant("c", device="d2"), tenant("d", device="d1")
        one.writes(placement={"off": True}, tenants=[A, c, d])
        answer = await one.applier.apply(lambda before: one.applier.source.written())
        assert set(answer.lines) == {
            "d1 on m1: d: added",
            AWAY,
            "machine m2: away, and will hear of it once they answer",
        }
        assert {name: each.awaited for name, each in answer.devices.items()} == {
            "d1": {"d": "ready"}
        }, "who is away is not waited for"
        assert serves(one)["d1"] == ["a", "d"]
        one.machines.gone = set()
        await one.controller.step()
        await one.controller.step()
        assert serves(one) == begins(one) == {"d1": ["a", "d"], "d2": ["c"]}

    runs(run())


def test_stand_ins_of_a_lost_machine_stay_and_new_models_go_elsewhere(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        one.machines.gone = {"m2"}
        await one.controller.step()
        await one.controller.step()
        assert serves(one)["d1"] == ["a", "b"], one.lines
        one.writes(tenants=[A, B | {"priority": 2}, tenant("c")])
        told = await one.apply()
        assert "c: on d1, placed" in told and AWAY in told, told
        assert serves(one)["d1"] == ["a", "b", "c"], "b stays, since d2 is still lost"
        assert one.machines.served["d1"]["tenants"][1]["priority"] == 2
        one.writes(tenants=[A, tenant("c"), tenant("d", device="d2")])
        await one.apply()
        assert serves(one)["d1"] == ["a", "c"]
        await one.controller.step()
        assert serves(one)["d1"] == ["a", "c", "d"], "a new model of a lost device too"
        one.machines.gone = set()
        for _ in range(4):
            await one.controller.step()
        assert serves(one) == {"d1": ["a", "c"], "d2": ["d"]}

    runs(run())


@pytest.mark.parametrize(
    ("late", "without_own"),
    [({"m1"}, set()), (set(), {"d2"})],
    ids=["another machine's", "its own"],
)
def test_a_stand_in_stays_until_all_routers_reach_the_device(
    tmp_path: Path, late: set[str], without_own: set[str]
) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        one.machines.gone = {"m2"}
        await one.controller.step()
        await one.controller.step()
        assert serves(one)["d1"] == ["a", "b"], one.lines
        one.machines.gone, one.machines.late = set(), late
        one.machines.without_own = without_own
        for _ in range(4):
            await one.controller.step()
        assert serves(one) == {"d1": ["a", "b"], "d2": ["b"]}, "clients still need it"
        one.machines.late = one.machines.without_own = set()
        await one.controller.step()
        assert serves(one) == {"d1": ["a"], "d2": ["b"]}

    runs(run())


def test_a_model_moves_before_it_leaves(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path, placement={"decide_s": 0.01})
        one.writes(tenants=[A | {"device": "d2"}, B], placement={"decide_s": 0.01})
        (line,) = await one.apply()
        assert line == "a: goes from d1 to d2, and is there before it leaves"
        assert serves(one) == {"d1": ["a"], "d2": ["b"]}
        await one.controller.step()
        assert serves(one) == {"d1": [], "d2": ["a", "b"]}
        assert any("the file has it so" in line for line in one.lines)
        facts = one.applier.known.facts
        assert {model.name: model.pins for model in facts.models} == {"a": ("d2",), "b": ("d2",)}
        for _ in range(3):
            await one.controller.step()
        assert serves(one) == {"d1": [], "d2": ["a", "b"]}, "it is where it is at home"

    runs(run())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hang_s": 9}, "hang_s cannot change while this controller runs: start mirage serve"),
        ({"dtype": "bfloat16"}, "dtype cannot change while"),
        (
            {
                "devices": [
                    {"name": f"d{n}", "machine": f"m{n}", "memory": f"{n + 3}MiB"} for n in (1, 2)
                ]
            },
            "devices.d2.memory cannot change",
        ),
        (
            {"devices": [{"name": f"d{n}", "machine": "m1", "memory": "4MiB"} for n in (1, 2)]},
            "devices.d2.machine cannot change",
        ),
        (
            {"devices": [{"name": "d1", "machine": "m1", "memory": "4MiB"}], "tenants": [A]},
            "devices.d2 cannot change",
        ),
        ({"tenants": [A, B, tenant("c", device="d9")]}, "no device 'd9'"),
        ({"tenants": [A, B, tenant("c", share="much")]}, "share"),
        ({"placement": {"decide_s": 0}}, "placement.decide_s"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        one.writes(**changes)
        with pytest.raises((CommandFailed, ConfigError), match=words) as refused:
            await one.apply()
        assert "\n" not in str(refused.value)
        assert serves(one) == {"d1": ["a"], "d2": ["b"]} and one.applier.revision.number == 0

    runs(run())


def test_a_place_without_host_memory_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        bytes_of_one = one.plan.known(one.probe).facts.models[0].parameters
        one.machines.host = {"m1": 100 * MIB, "m2": 4 * MIB + bytes_of_one * 3 // 2}
        await one.controller.step()
        one.writes(tenants=[A, B, tenant("c", device="d2", aliases=["other"])])
        with pytest.raises(CommandFailed, match="c does not come to d2: its weights take"):
            await one.apply()
        one.writes(tenants=[A, B, tenant("c", device="d1")])
        await one.apply()
        assert serves(one) == {"d1": ["a", "c"], "d2": ["b"]}

    runs(run())


def test_rules_of_placement_change_at_once(tmp_path: Path) -> None:
    """A machine is lost while `placement.off` forbids moves, so its model stays away. A new
    configuration without `off` lets the model go to the other machine at the next step.
    """

    async def run() -> None:
        one = await begun(tmp_path, placement={"off": True})
        one.machines.gone = {"m2"}
        for _ in range(3):
            await one.controller.step()
        assert serves(one)["d1"] == ["a"]
        one.writes(placement={"decide_s": 5})
        said = "placement.off, placement.decide_s: would be changed, at once"
        assert await one.apply(dry_run=True) == (said,)
        assert await one.apply() == (
            "placement.off, placement.decide_s: changed, at once",
            "machine m2: away, and will hear of it once they answer",
        )
        await one.controller.step()
        assert serves(one)["d1"] == ["a", "b"], one.lines

    runs(run())


def test_what_was_applied_is_what_the_next_controller_begins_with(tmp_path: Path) -> None:
    async def run() -> None:
        one = await begun(tmp_path)
        told = one.applier.source.written()

        def edit(before: Any) -> Any:
            more = {**told.raw, "tenants": [*told.raw["tenants"], tenant("c", device="d1")]}
            return type(before)(more, before.path, before.folder)

        await one.applier.apply(edit)
        one.applier._means = one.applier._means._replace(
            state=KeptState(StateFile(None), one.file, told, told.sha256)
        )
        assert "c: removed" in (await one.apply())[0]
        assert (await one.applier.apply(edit)).lines[-1] == (
            f"the next controller begins with {one.file} again: apply that, or start one with "
            "--state FILE"
        )
        choice = StateFile(one.state).choose(told)
        assert [one["name"] for one in choice.written.raw["tenants"]] == ["a", "b", "c"]
        assert "counts: it was applied after" in choice.line

    runs(run())
