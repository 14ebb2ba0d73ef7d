"""The knobs of a configuration, and the file that a choice of their values makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tune_case import write

from mirage.config import Config, load
from mirage.tools.explain.machine import machine
from mirage.tools.explain.subjects import subjects
from mirage.tools.tune.space import Choice, SearchSpace, changes, fixed, space
from mirage.tools.tune.written import tuned

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    return of(write(tmp_path_factory.mktemp("space")))


def of(path: Path) -> SearchSpace:
    config = load(path)
    known = subjects(config, machine("gh200", config.device).hardware, 512)
    return space(config, known.fits, [2.0, 5.0])


def choices(knobs: SearchSpace) -> st.SearchStrategy[Choice]:
    return st.fixed_dictionaries(
        {}, optional={knob.name: st.sampled_from(knob.values) for knob in knobs.knobs}
    )


def test_leaving_all_alone_is_a_choice_like_any_other(made: SearchSpace) -> None:
    assert made.apply({}) == made.config
    assert made.apply({knob.name: knob.default for knob in made.knobs}) == made.config


def test_every_knob_has_the_value_of_the_file_and_others(made: SearchSpace) -> None:
    names = {knob.name for knob in made.knobs}
    assert {"share:chat", "max_percent:code", "floor_layers:chat", "serve", "tbt_ms"} <= names
    assert {"max_num_seqs", "max_num_batched_tokens", "rest_s"} <= names
    for knob in made.knobs:
        assert len(set(knob.values)) == len(knob.values) > 1


@pytest.mark.parametrize("mode", ["spatial", "temporal"])
def test_turns_are_a_knob_where_there_are_any(tmp_path: Path, mode: str) -> None:
    found = of(write(tmp_path, sharing={"mode": mode, "turn_s": 3.0}))
    names = {knob.name for knob in found.knobs}
    assert ("turn_s" in names) == (mode == "temporal")
    assert ("rest_s" in names) == (mode == "spatial")
    if mode == "temporal":
        assert found.apply({"turn_s": 6.0}).sharing.turn_s == 6.0


@given(data=st.data())
def test_any_choice_is_a_configuration_that_fits(made: SearchSpace, data: st.DataObject) -> None:
    config = made.apply(data.draw(choices(made)))
    assert Config.model_validate(config.model_dump()) == config
    assert sum(t.share for t in config.tenants) <= sum(t.share for t in made.config.tenants) + 1e-6
    found = subjects(config, machine("gh200", config.device).hardware, 512)
    assert not found.refused
    for tenant, before in zip(config.tenants, made.config.tenants, strict=True):
        assert tenant.max_num_batched_tokens <= before.max_num_batched_tokens
        assert tenant.max_num_seqs <= before.max_num_seqs  # a GPU has no room for more


@pytest.mark.parametrize("percent", [0.0, 30.0])
def test_a_fixed_percentage_is_that_of_all_models(made: SearchSpace, percent: float) -> None:
    own = made.apply({"max_percent:chat": 50.0})
    config = fixed(own, percent)
    assert [config.max_percent(t) for t in config.tenants] == [percent, percent]


def test_a_knob_that_is_not_there_is_refused(made: SearchSpace) -> None:
    with pytest.raises(KeyError):
        made.apply({"turn_s": 1.0})


# -- the file ---------------------------------------------------------------------------


@given(data=st.data())
def test_the_file_that_is_written_reads_as_the_choice(
    made: SearchSpace, data: st.DataObject
) -> None:
    config = made.apply(data.draw(choices(made)))
    text = tuned(content(made), changes(made.config, config), ["Why."])
    read = Config.model_validate(yaml.safe_load(text))
    assert changes(config, read) == {}
    assert read.model_dump() == config.model_dump()


def test_a_changed_value_says_what_it_was_and_all_else_stays(
    made: SearchSpace, tmp_path: Path
) -> None:
    raw = content(made) | {"dtype": "bfloat16"}
    config = made.apply({"max_percent:code": 30.0, "tbt_ms": 5.0})
    lines = tuned(raw, changes(made.config, config), ["It pays. " * 20]).splitlines()
    assert "  max_percent: 30.0  # tuned, was None" in lines
    assert "  tbt_ms: 5.0  # tuned, was None" in lines
    assert "dtype: bfloat16" in lines
    assert all(len(line) <= 100 for line in lines)
    assert [line for line in lines if line.startswith("# It pays.")]


def test_a_limit_that_is_taken_away_is_said(made: SearchSpace) -> None:
    before = made.config.model_copy(
        update={"remap": made.config.remap.model_copy(update={"tbt_ms": 5.0})}
    )
    raw = content(made) | {"remap": {"tbt_ms": 5.0}}
    text = tuned(raw, changes(before, made.config), [])
    assert "  tbt_ms: null  # none: tuned, was 5" in text.splitlines()
    assert Config.model_validate(yaml.safe_load(text)).remap.tbt_ms is None


def content(made: SearchSpace) -> dict[str, Any]:
    """Content of the file from which the configuration was read, with the paths as found on this
    machine.
    """
    tenants = [
        {"name": t.name, "model": os.fspath(t.model), "share": t.share, "max_model_len": 1024}
        for t in made.config.tenants
    ]
    return {
        "device": {"kind": "cuda", "memory": "640MiB", "page": "2MiB"},
        "block_tokens": 16,
        "tenants": tenants,
        "replay": {"time_scale": 1.0},
    }
