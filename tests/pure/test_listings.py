"""Bodies in the forms of Ollama and llama-swap, field by field."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_arbiter import report
from world import SHAPE

from mirage.config import Policy
from mirage.control.roster.states import LifeState
from mirage.serve.registry.loaded import LoadedTenant, decoded, encoded, loaded
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.routed.table import RoutedRow
from mirage.serve.router.listings import running, running_models, tags

pytestmark = pytest.mark.pure

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
ROWS = [
    RoutedRow("a", "", 128, LifeState.READY, aliases=("gpt",), adapters={"lora": "/x"}),
    RoutedRow("b", "", 256, LifeState.SLEEPING),
    RoutedRow("c", "", 512, LifeState.WAKING),
    RoutedRow("d", "", 512, LifeState.DRAINING),
    RoutedRow("e", "", 512, LifeState.FAILED),
]
TOLD = {"a": LoadedTenant(100, 70, 30, 90.5), "b": LoadedTenant(200)}


def all_of(row: RoutedRow, name: str) -> bool:
    return True


def test_what_is_on_the_device_in_ollamas_form() -> None:
    first, last = running_models(ROWS, TOLD, NOW, all_of)["models"]
    digest = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert first == {
        "name": "a",
        "model": "a",
        "size": 100,
        "digest": digest,
        "details": {
            "parent_model": "",
            "format": "safetensors",
            "family": "",
            "families": [],
            "parameter_size": "",
            "quantization_level": "",
        },
        "expires_at": "2026-11-27T12:01:30Z",
        "size_vram": 70,
        "context_length": 128,
    }
    assert (last["name"], last["size_vram"]) == ("d", 0), "nothing is known of it"
    assert last["expires_at"] == "9999-12-31T00:00:00Z"


def test_all_names_in_ollamas_form() -> None:
    found = tags(ROWS, TOLD, 1_000_000_000, all_of)["models"]
    assert [one["name"] for one in found] == ["a", "gpt", "lora", "b", "c", "d", "e"]
    assert [one["size"] for one in found[:4]] == [100, 100, 100, 200]
    assert {one["modified_at"] for one in found} == {"2001-09-09T01:46:40Z"}
    assert [one["details"]["parent_model"] for one in found[:4]] == ["", "a", "a", ""]
    assert len({one["digest"] for one in found}) == len(found)


def test_what_runs_in_llama_swaps_form() -> None:
    found = running(ROWS, TOLD, all_of)["running"]
    states = {one["model"]: one["state"] for one in found}
    assert states == {"a": "ready", "c": "starting", "d": "stopping"}
    assert found[0] == {
        "model": "a",
        "state": "ready",
        "cmd": "",
        "proxy": "",
        "ttl": 91,
        "name": "a",
        "description": "",
    }


def test_who_may_use_one_name_sees_that_name() -> None:
    def alias(row: RoutedRow, name: str) -> bool:
        return name == "gpt"

    for found in (tags(ROWS, TOLD, 0, alias), running_models(ROWS, TOLD, NOW, alias)):
        [one] = found["models"]
        assert one["name"] == "gpt" and one["details"]["parent_model"] == ""
    assert [one["model"] for one in running(ROWS, TOLD, alias)["running"]] == ["gpt"]


def test_sizes_are_those_of_shape_and_report() -> None:
    backends = {name: TenantServer(name, Path(name), 128) for name in "ab"}
    registry = Registry(Policy.MIRAGE, 1 << 20, backends)
    assert loaded(registry) == {}
    registry.shapes["a"] = registry.shapes["gone"] = SHAPE
    parameters = SHAPE.fixed_bytes + SHAPE.layers * SHAPE.layer_bytes
    assert loaded(registry) == {"a": LoadedTenant(parameters)}
    told = report(True)
    told.layers_remapped = 2
    registry.reports["a"] = told
    found = loaded(registry)
    assert found == {"a": LoadedTenant(parameters, 1700, 2 * SHAPE.layer_bytes, None)}
    assert decoded(encoded(found)) == found
