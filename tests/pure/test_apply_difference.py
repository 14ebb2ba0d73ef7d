"""The difference of two configurations: what is added, changed and removed, and what that needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import Config, TenantSection
from mirage.control.roster.fitting import Fitting
from mirage.errors import InputRefused
from mirage.serve.apply import said
from mirage.serve.apply.difference import AT_ONCE, ConfigDifference, TenantChange, difference
from mirage.serve.apply.edits import check_keys, with_keys, without
from tests.examples import examples

pytestmark = pytest.mark.pure

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["/m", "/n"]),
    "share": st.sampled_from([20, 40, "auto"]),
    "priority": st.integers(0, 2),
    "start": st.sampled_from(["eager", "on_request"]),
    "keep_alive": st.sampled_from(["never", "5m", 300.0]),
    "stop_after": st.sampled_from(["never", 60.0]),
    "pinned": st.booleans(),
    "keep_weights": st.sampled_from(["host", "none"]),
    "max_waiting": st.integers(1, 2),
    "max_wait_s": st.sampled_from([1.0, 2.0]),
    "aliases": st.sampled_from([[], ["x"], ["x", "y:1/z"]]),
    "adapters": st.sampled_from([{}, {"x": "/x"}, {"x": "/y"}, {"x": "/x", "y": "/y"}]),
    "limits": st.sampled_from([{}, {"in_flight": 1}, {"in_flight": 2, "tokens_per_minute": 9}]),
    "defaults": st.sampled_from([{}, {"top_p": 1}, {"top_p": 1.0}, {"top_k": 5}]),
    "max_model_len": st.integers(1, 2),
    "max_num_seqs": st.integers(1, 2),
    "max_num_batched_tokens": st.integers(1, 2),
    "floor_layers": st.integers(1, 2),
    "max_percent": st.sampled_from([0, 50.0]),
    "max_cost_ms": st.sampled_from([0, 2.5]),
    "engine_args": st.sampled_from([{}, {"seed": 1}, {"seed": True}, {"seed": 2, "x": {"y": 1}}]),
}


def tenants() -> st.SearchStrategy[dict[str, Any]]:
    own = st.fixed_dictionaries(
        {"model": KEYS["model"], "share": KEYS["share"]},
        optional={name: drawn for name, drawn in KEYS.items() if name not in ("model", "share")},
    )
    return st.dictionaries(st.sampled_from("abcd"), own, min_size=1)


def config(tenants: dict[str, dict[str, Any]], **changes: Any) -> Config:
    sections = [{"name": name} | own | _aliases(name, own) for name, own in tenants.items()]
    told = {"device": {"memory": "4MiB"}, "tenants": sections, "roster": {}}
    return Config.model_validate(told | changes)


def _aliases(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Aliases of the tenant `name`, each with that name before it, because no two tenants may have
    the same alias.
    """
    return {"aliases": [f"{name}:{alias}" for alias in own["aliases"]]} if "aliases" in own else {}


def test_each_key_of_a_tenant_is_tried() -> None:
    assert KEYS.keys() | {"name"} == TenantSection.model_fields.keys()
    assert TenantSection.model_fields.keys() > AT_ONCE


@given(before=tenants(), after=tenants())
@examples(200)
def test_the_difference_is_what_differs(before: dict[str, Any], after: dict[str, Any]) -> None:
    one, other = config(before), config(after)
    found = difference(one, other)
    assert set(found.added) == after.keys() - before.keys()
    assert set(found.removed) == before.keys() - after.keys()
    assert not found.fixed and not found.roster
    changed = {change.name: change for change in found.changed}
    for name in before.keys() & after.keys():
        old, new = one.tenant(name), other.tenant(name)
        differs = {
            field
            for field in TenantSection.model_fields
            if repr(getattr(old, field)) != repr(getattr(new, field))
        }
        told = changed.get(name, TenantChange(name, (), ()))
        assert {key.split(".")[0] for key in told.at_once + told.restart} == differs
        assert {key.split(".")[0] for key in told.at_once} == differs & AT_ONCE
    assert set(changed) <= before.keys() & after.keys()
    assert found.is_none == (found == ConfigDifference())


@given(tenants=tenants())
@examples(50)
def test_a_configuration_does_not_differ_from_itself_in_another_order(
    tenants: dict[str, Any],
) -> None:
    assert difference(config(tenants), config(dict(reversed(tenants.items())))).is_none


def test_limits_of_a_tenant_hold_at_once() -> None:
    own = {"model": "/m", "share": 40}
    before = config({"a": own | {"limits": {"in_flight": 1}}})
    after = config({"a": own | {"limits": {"in_flight": 2}}})
    assert difference(before, after).changed == (TenantChange("a", ("limits.in_flight",), ()),)


def test_keys_in_a_mapping_have_their_names() -> None:
    own = {"model": "/m", "share": 40}
    before = config({"a": own | {"engine_args": {"seed": 1, "x": {"y": 1}}}})
    after = config({"a": own | {"engine_args": {"x": {"y": 2}}, "priority": 1}})
    (change,) = difference(before, after).changed
    assert change == TenantChange("a", ("priority",), ("engine_args.seed", "engine_args.x.y"))
    assert difference(before, after).needs_engines == ["a"]


@pytest.mark.parametrize(
    ("changes", "fixed"),
    [
        ({"device": {"memory": "5MiB"}}, ("device.memory",)),
        ({"policy": "static"}, ("policy",)),
        ({"sharing": {"mode": "temporal"}}, ("sharing.mode",)),
        ({"tiers": {"host": {"bytes": "1MiB"}}}, ("tiers.host",)),
        ({"remap": {"rest_s": 1.0}, "hang_s": 60.0}, ("remap.rest_s", "hang_s")),
        ({"block_tokens": 16, "dtype": "float32"}, ("block_tokens", "dtype")),
        ({"replay": {"seed": 3}}, ()),
        ({"http": {"tls": {"certificate": "/c", "key": "/k"}, "head_s": 1.0}}, ("http.tls",)),
    ],
)
def test_what_cannot_change_is_named(changes: dict[str, Any], fixed: tuple[str, ...]) -> None:
    one = {"a": {"model": "/m", "share": 40}}
    assert difference(config(one), config(one, **changes)).fixed == fixed


def test_rules_of_the_roster_hold_at_once() -> None:
    one = {"a": {"model": "/m", "share": 40}}
    found = difference(config(one), config(one, roster={"busy_s": 1.0, "victims": "lru"}))
    assert found.roster == ("roster.victims", "roster.busy_s") and not found.fixed


def test_limits_of_clients_hold_at_once_and_files_of_a_certificate() -> None:
    one, files = {"a": {"model": "/m", "share": 40}}, {"certificate": "/c", "key": "/k"}
    before = config(one, http={"tls": files})
    after = config(one, http={"tls": files | {"key": "/other"}, "head_s": 1.0, "cors": ["*"]})
    found = difference(before, after)
    assert found.http == ("http.head_s", "http.cors", "http.tls.key") and not found.fixed
    told = "http.head_s, http.cors, http.tls.key: would be changed, at once"
    assert said.lines(found, [], dry_run=True, keeps=False) == [told]


# -- words -------------------------------------------------------------------------------


def test_a_line_for_each_tenant() -> None:
    change = ConfigDifference(
        added=("c", "d"),
        changed=(TenantChange("a", ("priority",), ("share",)), TenantChange("b", ("start",), ())),
        removed=("e",),
        roster=("roster.busy_s",),
    )
    mib = 1 << 20
    outlook = [
        Fitting("c", mib, mib),
        Fitting("d", 2 * mib, -mib, ("a", "b")),
        Fitting("a", 2 * mib, -mib, (), comes=False),
    ]
    assert said.lines(change, outlook, dry_run=True, keeps=False) == [
        "c: would be added; it takes 1.0 MiB, and 1.0 MiB stay free",
        "d: would be added; it takes 2.0 MiB, of which 1.0 MiB are missing: a, b would yield now",
        "a: would be changed, priority at once; share with its next engine: one that it has starts "
        "anew; it takes 2.0 MiB, of which 1.0 MiB are missing: it waits until others may yield",
        "b: would be changed, start at once",
        "e: would be removed when its requests have ended, and its KV cache is erased",
        "roster.busy_s: would be changed, at once",
    ]
    assert said.lines(change, outlook, dry_run=False, keeps=False)[-1] == said.NO_STATE
    assert said.lines(ConfigDifference(), [], dry_run=False, keeps=False) == [said.NOTHING]


# -- edits -------------------------------------------------------------------------------

RAW = {
    "tenants": [{"name": "a", "share": 40, "engine_args": {"seed": 1}}, {"name": "b"}],
    "replay": {"trace": {"a": "x"}, "traffic": {"weights": {"a": 1.0, "b": 2.0}}},
}


def test_keys_of_one_tenant_are_set_and_unset() -> None:
    told = with_keys(
        RAW, "a", {"share": None, "engine_args.seed": None, "engine_args.x": 2, "max_percent": None}
    )
    assert told["tenants"] == [{"name": "a", "engine_args": {"x": 2}}, {"name": "b"}]
    assert RAW["tenants"][0] == {"name": "a", "share": 40, "engine_args": {"seed": 1}}  # type: ignore[index]
    assert with_keys(RAW, "b", {"engine_args.seed": None})["tenants"][1] == {"name": "b"}
    with pytest.raises(InputRefused, match="share has no keys"):
        with_keys(RAW, "a", {"share.x": 1})
    with pytest.raises(InputRefused, match="name is no key to set"):
        with_keys(RAW, "a", {"name": "c", "share": 1})


WHOLE = {"name": "a", "model": "/m", "share": 40, "device": "left"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"share": 200}, "tenant 'a': share: found 200, write 100 or less"),
        ({"share": None}, "tenant 'a': share: it is missing"),
        ({"priority": "high"}, "tenant 'a': priority: found 'high', write a whole number"),
        ({"limits.n": 0}, "tenant 'a': limits.n: found 0, write a number above 0"),
        ({"prioritty": 1}, "tenant 'a': unknown key 'prioritty': check its spelling; nearest: pri"),
        ({"defaults.n": 0}, "tenant 'a': defaults.n is 0: write 1 or more"),
    ],
)
def test_a_wrong_value_is_told_by_the_key_that_was_set(keys: dict[str, Any], why: str) -> None:
    edited = with_keys({"tenants": [{"name": "b"}, WHOLE]}, "a", keys)
    with pytest.raises(InputRefused) as refused:
        check_keys(edited, "a")
    assert str(refused.value).startswith(why)


def test_a_right_value_is_none_of_its_business() -> None:
    """`check_keys` accepts a right value of tenant `a`. It reads neither other tenants' sections
    nor the place of `a` in the list.
    """
    check_keys(with_keys({"tenants": [{"name": "b"}, WHOLE]}, "a", {"priority": 3}), "a")


def test_a_tenant_that_goes_is_named_nowhere() -> None:
    told = without(RAW, "a")
    assert told == {"tenants": [{"name": "b"}], "replay": {"traffic": {"weights": {"b": 2.0}}}}
