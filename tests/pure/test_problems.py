"""Errors in a configuration file: each is reported as one line, in this project's words."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import configs
from benchmarks.decode.setup import Decoding
from mirage.config import Config, ConfigError, validated
from mirage.problems import one_line
from mirage.profiles import Hardware, Model
from mirage.simulate.experiment import Experiment
from mirage.workload.formats.synthetic_schema import Synthetic

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
SERVED = """
device: {kind: host, index: 0, graphs: false, memory: 64MiB, page: 65536, copy_chunk: 16MiB,
         link_gb_s: 3, profile: h100}
tenants: [{name: a, model: m, share: 50, priority: 0, max_model_len: 5, engine_args: {seed: 1}}]
sharing: {mode: temporal, turn_s: 1, drain: auto}
remap: {serve: growth, lend_percent: 5, tbt_ms: 5, experts: false, headroom_extents: 2}
tiers:
  host: {bytes: 1MiB, policy: lru}
  peer: {devices: {p: {bytes: 1MiB}, q: 1MiB}, link_gb_s: 3, backed: true}
  ssd: {directory: kv, bytes: 1MiB, keep: false}
replay: {trace: {a: sample}, window: [0, 60], think_s: 3, seed: 0,
         traffic: {phase_s: 3, weights: {a: 1}}}
policy: mirage
block_tokens: 32
"""
SIMULATED = """
title: t
tenants: [{name: a, model: opt-13b, share: 50, rate: 3, silence: {from_s: 1, for_s: 2}}]
sharing: {mode: spatial, isolated: false}
workload: {arrivals: bursty, requests: 100, peak: {requests: 5, factor: 2}}
limits: {max_num_seqs: 4}
tiers: {peer: {bytes: 1G}, host: {bytes: 1G, policy: arc}, ssd: {bytes: 1G}, spill: true}
routing: {skew: 1}
policies: [mirage]
layer_sets: even
"""
DRAWN = """
kind: synthetic
rate: 3
mix: {sharegpt: 1}
bounds: {prompt: [1, 5], output: [1, 5]}
sessions: {turns: 3, think_s: 3}
"""
FILES: dict[str, tuple[type[BaseModel], str]] = {
    "served": (Config, SERVED),
    "simulated": (Experiment, SIMULATED),
    "decoding": (Decoding, (ROOT / "benchmarks/experiments/decode-ssd.yaml").read_text()),
    "drawn": (Synthetic, DRAWN),
    "hardware": (Hardware, (configs.HERE / "hardware/gh200.yaml").read_text()),
    "model": (Model, (configs.HERE / "models/opt-13b.yaml").read_text()),
}
BAD = (None, True, -1, 0.5, "x", "", [], [1], {}, {"x": 1}, {1: 2}, {"a\nb": 1}, 10**400, "a\nb")
ODD = (float("nan"), float("inf"), 2**70, "9" * 400)
KEYS = ("zzz", "a\nb", 7, "a[0]", None, True)
NOT_OURS = ("Input", "should", "permitted", "Field", "valid ", "Value error", "Keys", "what docs/")
LONGEST = 400


@pytest.mark.parametrize("name", FILES)
def test_every_wrong_value_at_every_place_is_one_line_in_our_words(name: str) -> None:
    schema, text = FILES[name]
    refused = 0
    for broken in _broken(yaml.safe_load(text)):
        try:
            validated(schema, broken, Path("F"))
        except ConfigError as error:
            line = str(error).removeprefix("F: ")
            assert not [word for word in NOT_OURS if word in line], line
            assert line.isprintable() and 0 < len(line) < LONGEST
            refused += 1
    assert refused > 50


def _broken(whole: Any) -> Iterator[Any]:
    """The file's content with one place changed: another value, an unknown key or a missing one."""
    for path in _places(whole):
        was = _at(whole, path)
        yield from (_changed(whole, path, value) for value in (*BAD, *ODD))
        if isinstance(was, dict):
            yield from (_changed(whole, path, was | {key: 1}) for key in KEYS)
            yield from (_changed(whole, path, _without(was, key)) for key in was)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else ()
    for key, one in enumerate(value) if isinstance(value, list) else inside:
        yield from _places(one, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def _changed(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    whole = deepcopy(whole)
    _at(whole, path[:-1])[path[-1]] = value
    return whole


def _without(mapping: dict[Any, Any], key: Any) -> dict[Any, Any]:
    return {one: value for one, value in mapping.items() if one != key}


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("policy", "magic", "policy: found 'magic', write 'static', 'pooled' or 'mirage'"),
        ("tenants.0.share", 0, "tenants.0.share: found 0, write a number above 0"),
        ("tenants.0.share", None, "tenants.0.share: nothing is no share: write per cent, or auto"),
        (
            "tenants.0.max_model_len",
            True,
            "tenants.0.max_model_len: found true, write a whole number",
        ),
        ("tenants.0.name", "a b", "found 'a b', write letters, digits and . _ / - alone"),
        ("tenants.0.name", "a\n", r"found 'a\n', write letters, digits and . _ / - alone"),
        ("tenants", [], "tenants: found [], write 1 entry or more"),
        ("tenants", None, "tenants: found nothing, write a list"),
        ("sharing.drain", "maybe", "drain: found 'maybe', write true or false or 'auto'"),
        ("replay.trace.a", None, "replay.trace.a: found nothing, write text"),
        ("replay.trace", 5, "replay.trace: found 5, write text or keys with values"),
        ("replay.traffic.weights", {"a\nb": -1}, r"weights.'a\nb': found -1, write 0 or more"),
        (
            "tiers.peer.devices",
            {"a\nb": 1},
            r"tiers.peer.devices: among its keys found 'a\nb', write letters",
        ),
        ("tiers.peer.devices", {1: 1}, "tiers.peer.devices: among its keys found 1, write text"),
        ("tiers", {1: 1}, "unknown key 1 in tiers: keys are words"),
        ("device", 5, "device: found 5, write keys with values"),
        ("device.memory", None, "device.memory: nothing is not a size: write bytes or"),
        ("device.index", -1, "device.index: found -1, write 0 or more"),
    ],
)
def test_a_line_says_where_which_value_and_what_to_write(path: str, value: Any, line: str) -> None:
    parts = [int(part) if part.isdigit() else part for part in path.split(".")]
    with pytest.raises(ConfigError) as caught:
        validated(Config, _changed(yaml.safe_load(SERVED), tuple(parts), value), Path("F"))
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "section",
    [
        "sharing",
        "remap",
        "tiers",
        "tiers.host",
        "replay",
        "replay.traffic",
        "tenants.0.engine_args",
    ],
)
def test_a_section_with_nothing_in_it_is_not_there(section: str) -> None:
    tenant = {"name": "a", "model": "m", "share": 50}
    plain = {"device": {"memory": "1GiB"}, "tenants": [tenant]}
    without, empty = deepcopy(plain), deepcopy(plain)
    *outer, last = [int(part) if part.isdigit() else part for part in section.split(".")]
    for whole in (without, empty) if len(outer) == 1 else ():
        whole.setdefault(str(outer[0]), {})
    _at(empty, tuple(outer))[last] = None
    assert validated(Config, empty, Path("F")) == validated(Config, without, Path("F"))


@pytest.mark.parametrize("section", ["sharing", "limits", "tiers", "remap", "routing"])
def test_nor_is_one_of_an_experiment(section: str) -> None:
    with_it = yaml.safe_load(SIMULATED)
    there = validated(Experiment, with_it | {section: None}, Path("F"))
    assert there == validated(Experiment, _without(with_it, section), Path("F"))


def test_words_of_another_program_are_one_line_that_ends() -> None:
    assert one_line("a\n  b\x00\ud800") == "a b\\x00\\ud800"
    assert len(one_line("x " * 10_000)) < 600
