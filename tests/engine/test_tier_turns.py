"""Turns above a pool: blocks of suspended requests go down, and come up when these go on.

The child process compares every text with what the model says by itself.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from children import must, spawn
from tier_turns import PART

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    said = must(spawn("tier_turns.py", tmp_path_factory.mktemp("tiers")))
    print(said.splitlines()[-1])
    return dict(json.loads(said.splitlines()[-1]))


def test_what_a_turns_end_leaves_goes_down_as_far_as_was_said(facts: dict[str, Any]) -> None:
    spilled = facts["spilled"]
    assert spilled["kept"] <= (1 - PART) * spilled["used"] + 1
    assert spilled["kept"] <= spilled["held"] < spilled["used"]
    assert spilled["running"] < facts["stayed"]["running"] == 6
    assert spilled["stored"] * spilled["extent_tokens"] > 0


def test_and_is_not_computed_anew(facts: dict[str, Any]) -> None:
    spilled = facts["spilled"]
    preempted = 6 - spilled["running"]
    # Of each, less than the block that was not full.
    assert spilled["again"] <= preempted * spilled["extent_tokens"]


def test_where_nothing_was_said_nothing_of_it_moves(facts: dict[str, Any]) -> None:
    stayed = facts["stayed"]
    assert stayed["kept"] == stayed["used"] and stayed["again"] == 0


def test_a_load_under_way_outlives_the_turn_that_began_it(facts: dict[str, Any]) -> None:
    drained = facts["drained"]
    assert drained["while_loading"] == 1 and drained["texts"] == 0
    assert drained["hits"] > 0


def test_what_loads_after_the_turns_end_is_given_up_once_it_is_there(facts: dict[str, Any]) -> None:
    assert facts["came_too_late"]["held"] == facts["came_too_late"]["while_coming"] > 0


def test_requests_that_have_loaded_and_find_no_more_room_make_way(facts: dict[str, Any]) -> None:
    assert facts["without_room"]["held"] > 0
    assert facts["without_room"]["made_way"] > 0
