"""Memory with which an engine may start before its share is free."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_launcher import FIT

from mirage.config import Config
from mirage.geometry import footprint
from mirage.serve.engines.hollow import hollow_start
from mirage.serve.launch.launcher import command
from mirage.serve.roster.declared import shape_of

pytestmark = pytest.mark.pure


def config(**changes: Any) -> Config:
    tenant = {"name": "a", "model": "/models/a", "share": 50}
    return Config.model_validate({"device": {"memory": "8GiB"}, "tenants": [tenant]} | changes)


def test_it_is_the_least_with_which_it_serves_and_a_page() -> None:
    made = config()
    begins = hollow_start(made, made.tenants[0], FIT)
    assert begins is not None
    shape = shape_of(made, FIT)
    held = footprint(shape, begins.layers_remapped, shape.min_extents)
    assert begins.grant_bytes == held + FIT.page.bytes < FIT.grant_bytes
    assert (
        0 < begins.layers_remapped < FIT.layers - begins.stream_slots and begins.stream_slots == 2
    )
    words = command(made, made.tenants[0], FIT, Path("/s"), Path("/run/c"), begins=begins)
    settings = json.loads(words[words.index("--additional-config") + 1])["mirage"]
    assert (settings["layers_remapped"], settings["stream_slots"]) == (
        begins.layers_remapped,
        begins.stream_slots,
    )
    assert settings["grant_bytes"] == begins.grant_bytes
    assert settings["base_blocks"] == FIT.min_blocks


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "pooled"},
        {"device": {"memory": "8GiB", "kind": "cuda"}},
        {"device": {"memory": "8GiB", "compile": True}},
        {"tenants": [{"name": "a", "model": "/m", "share": 50, "keep_weights": "none"}]},
        {"tenants": [{"name": "a", "model": "/m", "share": 50, "max_percent": 0}]},
    ],
)
def test_there_is_none_where_all_layers_have_to_be_in_memory(changes: dict[str, Any]) -> None:
    made = config(**changes)
    assert hollow_start(made, made.tenants[0], FIT) is None


def test_there_is_none_for_layers_that_stay_or_a_share_that_is_no_more() -> None:
    made = config()
    (tenant,) = made.tenants
    assert hollow_start(made, tenant, replace(FIT, movable_layers=0)) is None
    begins = hollow_start(made, tenant, FIT)
    assert begins is not None
    assert hollow_start(made, tenant, replace(FIT, grant_bytes=begins.grant_bytes)) is None
