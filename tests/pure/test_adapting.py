"""Adapters that engines load while they run: the changes asked of engines, the allowed folders, and
copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_folder import make_adapter

from mirage.config import Config, ConfigError, made
from mirage.serve.adapting.adapters import adapters_of, check, with_declared
from mirage.serve.adapting.allowed import check_allowed
from mirage.serve.adapting.copies import AdapterCopies
from mirage.serve.adapting.desired import AdapterBook, AdapterState, EngineAdapter, parsed
from mirage.serve.commands.check_adapters import adapter_lines
from mirage.serve.routed.table import RoutedRow
from tests.examples import examples

pytestmark = pytest.mark.pure

ONE, TWO = "0" * 16, "1" * 16


# -- what follows ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "team/x", "a@b", f"x@{ONE}", "gpt:4o"])
def test_an_engines_name_tells_the_adapter(name: str) -> None:
    one = EngineAdapter(name, ONE)
    assert parsed(one.known_as) == one


@pytest.mark.parametrize("known_as", ["x", "x@1", f"@{ONE}", f"x@{ONE}0", "x@" + "g" * 16])
def test_other_names_are_no_adapters_of_ours(known_as: str) -> None:
    assert parsed(known_as) is None


def book(**declared: str) -> AdapterBook:
    one = AdapterBook(has={})
    one.declares({name: Path(f"/{folder}") for name, folder in declared.items()})
    return one


def test_an_adapter_is_asked_for_once_it_is_there() -> None:
    one = book(x="a")
    assert not one.folders() and one.told()["x"].state is AdapterState.LOADING
    one.digests["x"] = ONE
    new = EngineAdapter("x", ONE)
    assert one.missing() == [new] and not one.surplus()
    one.has = {new: Path("/a")}
    assert one.folders() == {"x": "/a"} and one.names() == {"x": f"x@{ONE}"}
    assert not one.missing() and one.told()["x"].state is AdapterState.LOADED


def test_the_one_before_serves_until_another_is_there() -> None:
    one = book(x="a")
    old, new = EngineAdapter("x", ONE), EngineAdapter("x", TWO)
    one.digests, one.has = {"x": ONE}, {old: Path("/a")}
    one.declares({"x": Path("/b")})
    assert one.serving() == {"x": old} and one.told()["x"].state is AdapterState.LOADING
    one.digests["x"] = TWO
    assert one.serving() == {"x": old} and one.missing() == [new] and not one.surplus()
    one.fails("x", "it is bad")
    assert one.serving() == {"x": old} and one.told()["x"].reason == "it is bad"
    one.has[new] = Path("/b")
    assert one.serving() == {"x": new} and one.surplus() == [old]
    assert one.folders() == {"x": "/b"}


def test_one_that_is_not_declared_is_asked_for_no_more() -> None:
    one = book(x="a")
    one.digests, one.has = {"x": ONE}, {EngineAdapter("x", ONE): Path("/a")}
    one.declares({})
    assert not one.folders() and not one.names() and not one.missing() and not one.told()
    assert one.surplus() == [EngineAdapter("x", ONE)]


def test_without_an_engine_all_but_failed_ones_are_asked_for() -> None:
    one = book(x="a", y="b")
    one.fails("y", "it is bad")
    one.has = None
    assert one.folders() == {"x": "/a"} and not one.names()
    assert [told.state for told in one.told().values()] == ["waiting", "failed"]
    one.declares({"x": Path("/a"), "y": Path("/c")})
    assert one.folders() == {"x": "/a", "y": "/c"}, "another folder, another try"


FOLDERS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["/a", "/b", "/bad"]))
CONTENT = {"/a": ONE, "/b": TWO, "/bad": "b" * 16}


@given(wanted=st.lists(FOLDERS, min_size=1), stops=st.lists(st.integers(0, 3), min_size=1))
@examples(200)
def test_whatever_was_declared_meanwhile_the_last_holds(
    wanted: list[dict[str, str]], stops: list[int]
) -> None:
    one = AdapterBook(has={})
    for number, declared in enumerate(wanted):
        one.declares({name: Path(folder) for name, folder in declared.items()})
        assert one.folders().keys() <= declared.keys()
        work(one, stops[number % len(stops)])
    work(one, 99)
    assert one.has is not None
    good = {name: folder for name, folder in wanted[-1].items() if folder != "/bad"}
    assert good.items() <= one.folders().items()
    assert set(one.failed) == wanted[-1].keys() - good.keys()
    left = [each for each in one.has if each not in set(one.serving().values())]
    assert not left and not one.surplus()


def work(one: AdapterBook, steps: int) -> None:
    """Carry out up to `steps` additions and then up to `steps` removals of adapters, as an engine
    would.
    """
    assert one.has is not None
    for name, folder in one.declared.items():
        if name not in one.failed:
            one.digests[name] = CONTENT[str(folder)]
    for each in [each for each in one.missing() if each.name not in one.failed][:steps]:
        if each.digest == CONTENT["/bad"]:
            one.fails(each.name, "it is bad")
        else:
            one.has[each] = one.declared[each.name]
    for each in one.surplus()[:steps]:
        del one.has[each]


def test_a_request_goes_under_the_engines_name() -> None:
    row = RoutedRow(
        "a", "/s", 8, adapters={"x": "/x", "s": "/s"}, known={"x": "x@1"}, aliases=("b",)
    )
    assert [row.known_as(name) for name in row.names] == ["a", "a", "x@1", "s"]


# -- where they may lie ------------------------------------------------------------------


def config(folder: Path, **keys: Any) -> Config:
    tenant = {"name": "m", "model": "m", "share": 10, "engine_args": {"enable_lora": True}}
    content = {"device": {"memory": "1MiB"}, "tenants": [tenant | keys], "adapter_folders": ["ok"]}
    return made(content, folder / "config.yaml", folder)


def refusal(one: Config) -> str:
    found, refused = check(one)
    assert not found
    return refused["m"]


def test_a_declared_adapter_is_looked_at_and_does_not_come_with_the_start(tmp_path: Path) -> None:
    make_adapter(tmp_path / "ok" / "x")
    one = config(tmp_path, adapters={"x": "ok/x"})
    assert check(one) == ({"m": {}}, {})
    assert adapters_of(one.tenants[0].engine_args) == {}
    asked = with_declared(one.tenants[0])
    assert adapters_of(asked.engine_args) == {"x": str(tmp_path / "ok" / "x")}
    assert asked.engine_args["enable_lora"] is True
    where = tmp_path / "ok"
    assert adapter_lines(one, ["m"]) == [
        "m: its engine loads adapter x when it has started; others may come while it runs, "
        f"from {where}"
    ]
    assert not adapter_lines(one, [])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"adapters": {"x": "ok/nowhere"}}, "adapter 'x': no adapter_config.json in /"),
        ({"adapters": {"x": "other"}}, "lies outside of adapter_folders: put it into /"),
        ({"adapters": {"x": "ok/../other"}}, "lies outside of adapter_folders"),
        ({"adapters": {"x": "ok/link"}}, "other lies outside of adapter_folders"),
        ({"adapters": {"x": "ok/half"}}, "is a link to /"),
        ({"adapters": {"x": "ok/code"}}, "no adapter_model.safetensors in /"),
        ({"adapters": {"x": "ok/wide"}}, "its rank is 64: set engine_args.max_lora_rank to 64"),
        ({"adapters": {"m": "ok/x"}}, "adapter 'm' has the name of tenant 'm': rename it"),
        ({"adapters": {"x": "ok/x"}, "aliases": ["x"]}, "has the name of an alias of tenant 'm'"),
        ({"adapters": {"x": "ok/x"}, "engine_args": {}}, "adapters needs enable_lora: set engine_"),
        (
            {
                "adapters": {"x": "ok/x"},
                "engine_args": {"enable_lora": True, "lora_modules": [{"name": "x", "path": "o"}]},
            },
            "adapter 'x' is in adapters and lora_modules: name it once",
        ),
    ],
)
def test_what_may_not_be_loaded_is_refused(
    tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    make_adapter(tmp_path / "ok" / "x")
    make_adapter(tmp_path / "ok" / "wide", r=64)
    other = make_adapter(tmp_path / "other")
    (tmp_path / "ok" / "link").symlink_to(other)
    code = make_adapter(tmp_path / "ok" / "code")
    (code / "adapter_model.safetensors").rename(code / "adapter_model.bin")
    half = make_adapter(tmp_path / "ok" / "half")
    (half / "adapter_model.safetensors").unlink()
    (half / "adapter_model.safetensors").symlink_to(other / "adapter_model.safetensors")
    why = refusal(config(tmp_path, **keys))
    assert words in why and "\n" not in why


def test_without_folders_nothing_may_be_loaded(tmp_path: Path) -> None:
    make_adapter(tmp_path / "ok" / "x")
    one = config(tmp_path, adapters={"x": "ok/x"}).model_copy(update={"adapter_folders": []})
    assert "name a folder for adapters in adapter_folders" in refusal(one)
    assert not adapter_lines(one, ["m"])


def test_links_within_the_folders_are_followed(tmp_path: Path) -> None:
    """Symbolic links inside an allowed folder are followed, because a hub's cache consists of links
    to blobs.
    """
    make_adapter(tmp_path / "ok" / "blobs")
    (tmp_path / "ok" / "x").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "ok" / "x" / name).symlink_to(f"../blobs/{name}")
    (tmp_path / "way").symlink_to(tmp_path / "ok")
    one = config(tmp_path, adapters={"x": "way/x"})
    assert check(one) == ({"m": {}}, {})
    check_allowed(tmp_path / "ok" / "x", [tmp_path / "ok"])


def test_another_tenants_adapter_has_its_name_alone(tmp_path: Path) -> None:
    make_adapter(tmp_path / "ok" / "x")
    one = config(tmp_path, adapters={"x": "ok/x"})
    twin = one.tenants[0].model_copy(update={"name": "n"})
    found, refused = check(one.model_copy(update={"tenants": [*one.tenants, twin]}))
    assert [*found] == ["m"]
    assert refused == {"n": "adapter 'x' has the name of an adapter of tenant 'm': rename it"}


@pytest.mark.parametrize("adapters", [{"a b": "x"}, {"": "x"}, {"x": 3}, ["x"]])
def test_what_is_no_name_or_path_is_refused_by_the_schema(tmp_path: Path, adapters: Any) -> None:
    with pytest.raises(ConfigError, match="adapters"):
        config(tmp_path, adapters=adapters)


# -- copies ------------------------------------------------------------------------------


def test_other_files_are_another_copy_and_the_same_ones_are_not(tmp_path: Path) -> None:
    copies = AdapterCopies(tmp_path / "copies", [tmp_path])
    source = make_adapter(tmp_path / "x")
    first = copies.take(source)
    assert copies.take(source) == copies.take(make_adapter(tmp_path / "y")) == first
    config = copies.at(first) / "adapter_config.json"
    assert config.read_bytes() == (source / "adapter_config.json").read_bytes()
    make_adapter(source, lora_alpha=17)
    second = copies.take(source)
    assert second != first and b"17" not in config.read_bytes()
    assert {each.name for each in (tmp_path / "copies").iterdir()} == {first, second}
    copies.keep({second})
    assert [each.name for each in (tmp_path / "copies").iterdir()] == [second]


def test_a_copy_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "in" / "x")
    copies = AdapterCopies(tmp_path / "copies", [tmp_path / "in"])
    (source / "adapter_model.safetensors").chmod(0o600)
    (source / "adapter_config.json").unlink()
    with pytest.raises(OSError, match=r"adapter_config\.json"):
        copies.take(source)
    with pytest.raises(ValueError, match="outside of adapter_folders"):
        copies.take(make_adapter(tmp_path / "x"))
    assert not list((tmp_path / "copies").iterdir())
    AdapterCopies(tmp_path / "nowhere", []).keep(set())
