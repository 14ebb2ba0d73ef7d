"""A change of configuration simulated with requests of the past, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_facts import make_facts
from model_folder import OPT_13B

from mirage.config import Config
from mirage.protocol import Report
from mirage.serve.admin.foretold import Foretold, as_object, foretold
from mirage.serve.apply.difference import ConfigDifference, difference
from mirage.serve.apply.forms import ApplyTold
from mirage.serve.apply.what_if import ServedConfig, what_if
from mirage.serve.fit.fit import fit
from mirage.serve.whatif.forms import PastRow, WhatIfFacts
from mirage.serve.whatif.past import PastChunk
from mirage.serve.whatif.prediction import LEAST, NoPrediction, Prediction, errors, predict
from mirage.serve.whatif.scenes import KnownEngine, scene
from mirage.serve.whatif.table import shown
from mirage.serve.whatif.world import arrivals, world

pytestmark = pytest.mark.pure

MIB = 2**20
FACTS = make_facts(8, MIB, MIB, kv_token_bytes=4096, max_model_len=1024, block_tokens=16)
"""Nine MiB of parameters; a request of 1,024 tokens takes four MiB of KV memory."""
STEP_S, TOKEN_S = 0.01, 0.0001


def tenant(name: str, share: float, **keys: Any) -> dict[str, Any]:
    return {"name": name, "model": f"/models/{name}", "share": share} | keys


def config(*tenants: dict[str, Any], memory: int = 64 * MIB, **keys: Any) -> Config:
    device = {"memory": memory, "page": 65536}
    more = {"block_tokens": 16} | keys
    return Config.model_validate({"device": device, "tenants": list(tenants)} | more)


def report(**fields: Any) -> Report:
    told = {"step_s": STEP_S, "token_s": TOKEN_S, "layer_load_s": 0.001}
    return Report(0, True, 0, 0, 0, 0, 0, **(told | fields))


def served(config: Config) -> ServedConfig:
    fits, too_large = fit(config, {tenant.name: FACTS for tenant in config.tenants})
    assert not too_large, too_large
    return ServedConfig(config, fits)


def facts(now: Config, after: Config, preempted: int = 0) -> WhatIfFacts:
    known = {tenant.name: KnownEngine(report=report()) for tenant in now.tenants}
    change = difference(now, after)
    past = [PastChunk(number, 0.0, "a", b"", number * preempted) for number in (0, 1)]
    return what_if(served(now), served(after), change, known, past)


def asks(
    name: str, count: int = 60, every_s: float = 0.1, prompt: int = 64, output: int = 128
) -> list[PastRow]:
    """Past requests of a tenant, `every_s` apart, each with its first token after 1 s and its end
    after 2 s.
    """
    return [
        PastRow(name, 1e9 + number * every_s, prompt, output, 1.0, 2.0, True)
        for number in range(count)
    ]


def ttft(prediction: Prediction, name: str) -> tuple[float, float]:
    one = prediction.tenants[name]
    assert one.now is not None and one.after is not None
    assert one.now.ttft_ms is not None and one.after.ttft_ms is not None
    return one.now.ttft_ms.p99, one.after.ttft_ms.p99


# -- the world --------------------------------------------------------------------------


def test_a_scene_is_served_by_the_configuration_s_own_rules() -> None:
    told = config(
        tenant("a", 40, priority=2, max_percent=0, max_num_seqs=7),
        tenant("b", 60),
        sharing={"mode": "temporal", "turn_s": 2.0},
        remap={"hysteresis_s": 9.0},
        policy="pooled",
    )
    made = scene(told, served(told).fits, {"a": KnownEngine(report=report())}, None)
    again = msgspec.json.decode(msgspec.json.encode(made), type=type(made))
    assert again == made
    arbiter = world(again, {}).domains[0].arbiter
    assert arbiter.controller.device_bytes == 64 * MIB
    engine = world(again, {}).engines[0]
    assert (engine.limits.max_num_seqs, engine.limits.temporal) == (7, True)
    assert engine.holding.held_bytes <= 0.4 * 64 * MIB
    assert made.tenants["a"].steps is not None and made.tenants["b"].steps is None


def test_requests_of_the_past_come_as_they_came() -> None:
    told = config(tenant("a", 50), tenant("b", 50))
    made = scene(told, served(told).fits, {}, None)
    rows = [
        PastRow("b", 105.0, 10_000, 7, None, 1.0, True),
        PastRow("a", 103.5, 12, 0, 0.1, 0.1, True),
        PastRow("gone", 103.0, 1, 1, 0.1, 0.1, True),
    ]
    found = arrivals(made, rows)
    assert [(r.arrival, r.prompt, r.output) for r in found["a"]] == [(int(0.5e12), 12, 1)]
    (long,) = found["b"]
    assert long.arrival == int(2e12) and long.prompt + long.output == 1024, "as much as fits"
    assert "gone" not in found


def test_steps_are_those_of_the_engine_and_of_a_gpu_alone_those_without_others() -> None:
    told = config(tenant("a", 100))
    engine = KnownEngine(report=report(layer_compute_s=0.0005))
    (on_host,) = scene(told, served(told).fits, {"a": engine}, None).tenants.values()
    assert on_host.steps is not None
    assert on_host.steps.compute == ((10**10, 10**8, 0, 10**8, 0),)
    device = told.device.model_copy(update={"kind": "cuda"})
    gpu = told.model_copy(update={"device": device})
    made = scene(gpu, served(told).fits, {"a": engine}, None)
    steps = made.tenants["a"].steps
    assert made.shares_compute and steps is not None
    assert steps.compute[0][0] == 8 * 0.0005 * 1e12


def test_a_profile_counts_before_what_engines_measure(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OPT_13B))
    told = config(tenant("a", 100) | {"model": str(tmp_path)})
    device = told.device.model_copy(update={"profile": "host"})
    told = told.model_copy(update={"device": device})
    (one,) = scene(
        told, served(told).fits, {"a": KnownEngine(report=report())}, 1e9
    ).tenants.values()
    assert one.steps is not None and one.steps.source == "device.profile"
    assert one.steps.overhead[0] == pytest.approx(4.728e9, rel=0.01)


# -- predictions ------------------------------------------------------------------------


def test_half_of_a_share_is_felt_under_pressure() -> None:
    now = config(tenant("a", 70), tenant("b", 30), policy="static")
    after = config(tenant("a", 35), tenant("b", 30), policy="static")
    found = predict(facts(now, after), asks("a", prompt=512))
    before, then = ttft(found, "a")
    assert then > 2 * before
    one = found.tenants["a"]
    assert one.now is not None and one.after is not None
    assert one.now.requests == one.after.requests == 60
    assert one.after.tokens_s < one.now.tokens_s


def test_a_neighbour_that_goes_leaves_its_memory() -> None:
    tenants = tenant("a", 50), tenant("b", 50)
    now, after = config(*tenants, policy="pooled"), config(tenants[0], policy="pooled")
    rows = asks("a", prompt=512) + asks("b", prompt=512)
    found = predict(facts(now, after), rows)
    before, then = ttft(found, "a")
    assert then < before
    assert found.tenants["b"].after is None
    assert "removed" in shown(found)


def test_layers_that_may_not_move_help_nobody() -> None:
    now = config(tenant("a", 30), tenant("b", 70))
    after = config(tenant("a", 30), tenant("b", 70, max_percent=0))
    found = predict(facts(now, after), asks("a", prompt=512))
    before, then = ttft(found, "a")
    assert then > before


def test_a_model_without_a_kv_cache_is_left_out() -> None:
    told = config(tenant("a", 50), tenant("b", 50))
    both = facts(told, told)
    bare = msgspec.structs.replace(both.now.tenants["b"].shape, max_extents=0, min_extents=0)
    one = msgspec.structs.replace(both.now.tenants["b"], shape=bare)
    scene = msgspec.structs.replace(both.now, tenants=both.now.tenants | {"b": one})
    found = predict(WhatIfFacts(now=scene, after=scene, preempted={}), asks("a") + asks("b"))
    assert found.requests == 60 and found.notes[0].startswith("b: a model without a KV cache")


def test_a_new_tenant_has_no_requests_and_that_is_said() -> None:
    now, after = config(tenant("a", 50)), config(tenant("a", 50), tenant("c", 50))
    found = predict(facts(now, after), asks("a"))
    one = found.tenants["c"]
    assert one.measured is None and one.now is None
    assert one.after is not None and one.after.requests == 0
    assert any(note.startswith("c is new") for note in found.notes)


def test_tenants_that_come_and_go_are_simulated_with_their_roster() -> None:
    now = config(tenant("a", 60), tenant("b", 60))
    after = config(tenant("a", 100), tenant("b", 60))
    rows = asks("a", 30, 1.0) + [
        msgspec.structs.replace(row, tenant="b") for row in asks("b", 30, 1.0)
    ]
    told = facts(now, after)
    assert told.now.comes_and_goes
    found = predict(told, rows)
    assert all(one.now is not None and one.now.requests == 30 for one in found.tenants.values())
    assert max(ttft(found, "b")) > 50, "who sleeps has to wake"


def test_nothing_is_said_of_few_requests() -> None:
    told = config(tenant("a", 50))
    both = facts(told, told)
    with pytest.raises(NoPrediction, match="fewer than 20 requests in the last hour"):
        predict(both, asks("a", LEAST - 1) + asks("gone", 100))


def test_nothing_is_said_of_a_configuration_of_which_no_tenant_can_be_served() -> None:
    told = config(tenant("a", 50))
    both = facts(told, told)
    none = scene(told, {}, {}, None)
    assert none.tenants == {}
    with pytest.raises(NoPrediction, match="no tenant of it can be served"):
        predict(msgspec.structs.replace(both, after=none), asks("a"))
    with pytest.raises(NoPrediction, match="fewer than 20 requests"):
        predict(msgspec.structs.replace(both, now=none), asks("a"))


def test_nothing_is_said_of_pinned_tenants_that_leave_another_no_room() -> None:
    now = config(tenant("a", 50), tenant("b", 40))
    after = config(*(tenant(n, 60, pinned=n == "a") for n in "ab"), memory=24 * MIB)
    with pytest.raises(NoPrediction, match=r"tenant 'b' can never start: .* are missing"):
        predict(facts(now, after), asks("a"))


def test_nothing_is_said_of_steps_that_nobody_knows() -> None:
    now, after = config(tenant("a", 50)), config(tenant("a", 50) | {"model": "/models/other"})
    with pytest.raises(NoPrediction, match="how long a step of a takes is not known yet"):
        predict(facts(now, after), asks("a"))


def test_a_simulation_is_bounded_in_time() -> None:
    told = config(tenant("a", 50))
    ticks = iter(range(1000))
    with pytest.raises(NoPrediction, match="takes longer than 2 s"):
        predict(facts(told, told), asks("a", 500), limit_s=2, clock=lambda: float(next(ticks)))


def test_what_is_measured_is_told_beside_it() -> None:
    told = config(tenant("a", 50))
    after = config(tenant("a", 50, priority=1, limits={"requests_per_minute": 5}))
    rows = [*asks("a", 30), PastRow("a", 1e9, 10, 5, None, 4.0, False)]
    found = predict(facts(told, after, 3), rows)
    measured = found.tenants["a"].measured
    assert measured is not None and measured.ttft_ms is not None and measured.tpot_ms is not None
    assert (measured.requests, measured.preemptions, measured.ttft_ms.p50) == (31, 3, 1000.0)
    assert measured.tpot_ms.p50 == pytest.approx(1000 / 127)
    assert any("of 1 of 31 requests no usage was told" in note for note in found.notes)
    assert any("limits.requests_per_minute is not simulated" in note for note in found.notes)
    assert errors(found)["a"]["tpot_ms"] == pytest.approx(10 / (1000 / 127), rel=0.2)


# -- words ------------------------------------------------------------------------------


def applied(simulable: WhatIfFacts | None) -> ApplyTold:
    return ApplyTold(
        applied=False,
        revision=0,
        added=(),
        changed=(),
        removed=(),
        roster=(),
        fitting=(),
        awaited={},
        lines=("a: would be changed",),
        what_if=simulable,
    )


def test_the_table_has_now_and_after_and_the_error() -> None:
    now = config(tenant("a", 70), policy="static")
    after = config(tenant("a", 35), policy="static")
    found = foretold(applied(facts(now, after)), lambda: asks("a"))
    lines = found.text.splitlines()
    assert lines[0].startswith("simulated with the 60 requests of the last 8 s")
    assert lines[1].split()[:3] == ["TENANT", "REQUESTS", "TTFT"]
    assert [line.split()[0] for line in lines[2:5]] == ["a", "now", "after"]
    assert lines[5].startswith("error: now is simulated at, of the measured median: a TTFT ")
    assert lines[6] == "steps: by its engine's own steps"
    told = json.loads(as_object(applied(None), found, {}))
    assert told["no_prediction"] is None and "what_if" not in told
    assert set(told["prediction"]["tenants"]["a"]) == {"measured", "now", "after", "steps"}
    assert told["prediction"]["now_by_measured"]["a"]["ttft_ms"] > 0


def test_a_refusal_is_a_line() -> None:
    told = config(tenant("a", 50))
    found = foretold(applied(facts(told, told)), list)
    assert found.text == "fewer than 20 requests in the last hour: no prediction"
    assert json.loads(as_object(applied(None), found, {}))["no_prediction"] == found.text
    assert foretold(applied(None), list) == Foretold()


def test_a_restart_for_other_keys_is_noted() -> None:
    now = config(tenant("a", 50))
    after = config(tenant("a", 50, engine_args={"seed": 3}))
    assert facts(now, after).notes == (
        "a: engine_args.seed may change its steps, which are taken as now",
    )
    assert what_if(served(now), served(now), ConfigDifference(), {}, []).notes == ()


def test_an_engine_that_goes_on_keeps_its_shape() -> None:
    now = config(tenant("a", 50), tenant("b", 50))
    after = config(tenant("a", 40), tenant("b", 50, priority=1))
    shape = scene(now, served(now).fits, {}, None).tenants["a"].shape
    odd = msgspec.structs.replace(shape, fixed_bytes=shape.fixed_bytes + 65536)
    known = {name: KnownEngine(odd, report()) for name in "ab"}
    told = what_if(served(now), served(after), difference(now, after), known, [])
    assert told.now.tenants["a"].shape == told.after.tenants["b"].shape == odd
    assert told.after.tenants["a"].shape.fixed_bytes == shape.fixed_bytes
