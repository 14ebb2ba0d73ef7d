"""Host memory of weights, and the tenants whose weights stay there without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from model_facts import make_facts
from pydantic import ValidationError

from mirage.config import Config
from mirage.serve.device.weights_keeper import bounds
from mirage.serve.fit.fit import Fit, fit
from mirage.serve.fit.masters import master_lines
from vmm.host_memory import host_memory

pytestmark = pytest.mark.pure

MIB = 1 << 20
FACTS = make_facts(8, MIB - 5, MIB - 5)


def made(*changes: dict[str, Any], **more: Any) -> Config:
    """Configuration of one tenant for each of `changes`, all with the same model folder; each
    change replaces keys of its tenant.
    """
    tenants = [
        {"name": name, "model": "/models/m", "share": 20, "max_model_len": 100, **change}
        for name, change in zip("abcd", changes, strict=False)
    ]
    device = {"memory": 256 * MIB, "page": 65536}
    return Config.model_validate({"device": device, "tenants": tenants} | more)


def fits(config: Config) -> dict[str, Fit]:
    return fit(config, {tenant.name: FACTS for tenant in config.tenants})[0]


def line(config: Config) -> str:
    return "".join(master_lines(config, fits(config), idle_bytes=3 * MIB))


def test_tenants_of_the_same_weights_have_one_copy() -> None:
    (whole,) = {one.parameter_bytes for one in fits(made({}, {})).values()}
    assert whole // MIB == 8
    for config in (made({}), made({}, {}), made({}, {}, {})):
        assert line(config) == (
            "host memory: 9.0 MiB of weights, from which layers stream; "
            "up to 3.0 MiB stay without an engine"
        )


def test_without_the_keeper_each_engine_has_its_own_layers() -> None:
    none = {"keep_weights": "none"}
    words = "host memory: 16.0 MiB of weights, from which layers stream"
    assert line(made(none, none)) == words
    assert line(made(none, {})).startswith("host memory: 17.0 MiB")
    assert line(made({}, {"model": "/models/n"})).startswith("host memory: 18.0 MiB")


def test_what_may_stay_is_no_more_than_there_is() -> None:
    config = made({})
    (said,) = master_lines(config, fits(config), idle_bytes=1 << 40)
    assert said.endswith("; up to 9.0 MiB stay without an engine")


@pytest.mark.parametrize("changes", [{"policy": "static"}, {"policy": "pooled"}])
def test_where_no_layer_moves_there_is_nothing(changes: dict[str, Any]) -> None:
    assert line(made({}, {}, **changes)) == ""
    assert not made({}, **changes).keeps_weights(made({}).tenants[0])


def test_weights_of_layers_that_never_move_are_not_kept() -> None:
    config = made({"max_percent": 0}, {"max_percent": 50}, {"keep_weights": "none"})
    assert [config.keeps_weights(tenant) for tenant in config.tenants] == [False, True, False]


def test_idle_weights_have_half_of_what_is_left_unless_it_is_said() -> None:
    most = host_memory().bytes - 256 * MIB
    assert bounds(made({})) == (most // 2, most)
    tiers = {"host": {"bytes": 64 * MIB}}
    assert bounds(made({}, tiers=tiers)).most == most - 64 * MIB
    assert bounds(made({}, keeper={"idle_bytes": "1MiB"})) == (MIB, most)
    assert bounds(made({}, keeper={"idle_bytes": 0})) == (0, most)
    assert bounds(made({}, keeper={"idle_bytes": 2 * most})) == (most, most)


def test_a_bound_is_a_size() -> None:
    for wrong in (-1, "much"):
        with pytest.raises(ValidationError):
            made({}, keeper={"idle_bytes": wrong})
