"""The configuration file: what is accepted, and what is refused in one line."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mirage.config import UNITS, ConfigError, Policy, Remap, load, parse_bytes, resolved
from mirage.control.rules import Rules

pytestmark = pytest.mark.pure

TENANT = {"name": "a", "model": "models/a", "share": 60}
VALID: dict[str, Any] = {"device": {"memory": "64MiB"}, "tenants": [TENANT]}


def write(folder: Path, content: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_defaults_and_paths_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "a").mkdir(parents=True)
    config = load(write(tmp_path, VALID))
    assert config.device.memory == 64 * 2**20
    assert config.policy is Policy.MIRAGE
    assert config.tenant("a").model == tmp_path / "models" / "a"
    with pytest.raises(KeyError):
        config.tenant("b")


@pytest.mark.parametrize(("given", "meant"), [("h100", "h100"), ("own.yaml", "{}/own.yaml")])
def test_a_hardware_file_is_relative_too_and_a_name_is_a_name(
    tmp_path: Path, given: str, meant: str
) -> None:
    device = {"memory": "1GiB", "profile": given}
    assert load(write(tmp_path, VALID | {"device": device})).device.profile == meant.format(
        tmp_path
    )


@pytest.mark.parametrize(
    ("given", "meant"), [("kv", "{}/kv"), ("../kv", "{}/../kv"), ("/kv", "/kv")]
)
def test_the_folder_of_the_disk_is_relative_to_the_file(
    tmp_path: Path, given: str, meant: str
) -> None:
    tiers = {"host": {"bytes": "1MiB"}, "ssd": {"directory": given, "bytes": "1MiB"}}
    ssd = load(write(tmp_path, VALID | {"tiers": tiers})).tiers.ssd
    assert ssd is not None
    assert ssd.directory == Path(meant.format(tmp_path)).resolve()


@pytest.mark.parametrize(("own", "percent"), [({}, 40), ({"max_percent": 0}, 0)])
def test_a_tenants_own_percentage_comes_before_that_of_all(
    tmp_path: Path, own: dict[str, float], percent: float
) -> None:
    config = load(write(tmp_path, tenant(**own) | {"remap": {"max_percent": 40}}))
    assert config.max_percent(config.tenant("a")) == percent


@pytest.mark.parametrize("key", sorted(Rules.model_fields.keys() - Remap.model_fields))
def test_an_ablation_is_an_unknown_key_of_a_server(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key 'remap.{key}'"):
        load(write(tmp_path, VALID | {"remap": {key: 1}}))


def test_rules_are_the_settings_and_what_serves() -> None:
    made = Rules.of(Remap(rest_s=5, max_percent=50))
    assert (made.rest_s, made.max_percent, made.stream_slots, made.victims) == (
        5,
        50,
        "dynamic",
        "mru",
    )
    assert Rules.of(Remap()) == Rules()
    assert hash(made) == hash(made.model_copy())


@pytest.mark.parametrize(
    ("policy", "rules", "kept"),
    [
        (Policy.STATIC, Rules(), "nothing"),
        (Policy.POOLED, Rules(), "soon"),
        (Policy.POOLED, Rules(favour="throughput"), "soon"),
        (Policy.MIRAGE, Rules(), "lent"),
        (Policy.MIRAGE, Rules(favour="throughput"), "soon"),
        (Policy.MIRAGE, Rules(keep_free=False), "nothing"),
        (Policy.MIRAGE, Rules(serve="growth"), "asked"),
        (Policy.MIRAGE, Rules(tbt_ms=30, favour="throughput"), "asked"),
        (Policy.POOLED, Rules(serve="growth"), "soon"),
    ],
)
def test_what_newcomers_leave_free_follows_from_policy_and_rules(
    policy: Policy, rules: Rules, kept: str
) -> None:
    assert rules.kept(policy) == kept


def tenant(**changes: Any) -> dict[str, Any]:
    return VALID | {"tenants": [TENANT | changes]}


def two(**second: Any) -> dict[str, Any]:
    return VALID | {"tenants": [TENANT, TENANT | second]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "not YAML"),
        ("- 1", "expected keys with values"),
        ("", "expected keys with values"),
        ({"tenants": [TENANT]}, "device: it is missing"),
        (VALID | {"tenants": []}, "tenants: "),
        (VALID | {"tenant": []}, "unknown key 'tenant': check its spelling"),
        (tenant(max_percent=101), "tenants.0.max_percent: "),
        (tenant(max_percent=-1), "tenants.0.max_percent: "),
        (tenant(prioritty=1), "tenants.0.prioritty': check its spelling; nearest: priority"),
        (tenant(limits={"in_fligth": 1}), "in_fligth': check its spelling; nearest: in_flight"),
        (tenant(defaults={"temperature": float("nan")}), "defaults.temperature: nan is no number"),
        (tenant(defaults={"stop": {True: 1}}), "defaults.stop: true is no text: put keys in"),
        (tenant(defaults={"stop": [date(2020, 1, 1)]}), "date(2020, 1, 1) is no value of JSON"),
        (tenant(engine_args={"seed": b"a"}), "engine_args.seed: b'a' is no value of JSON"),
        ('a: {b: "c\\0"}', "'c\\x00' has a null byte or half a character in line 1, "),
        ('a: {"\\uD800": 1}', "'\\ud800' has a null byte or half a character in"),
        (tenant(seed=1), "unknown key 'tenants.0.seed': it is an argument of vLLM, write it under"),
        (VALID | {"models": {}}, "unknown key 'models': use tenants, "),
        (tenant(model=""), "tenants.0.model: it is empty: name a path"),
        (VALID | {"http": {"tls": {"certificate": "", "key": "k"}}}, "certificate: it is empty"),
        (tenant(ttl=300), "unknown key 'tenants.0.ttl': use keep_alive, "),
        (VALID | {"remap": {"layers_remapped": 1}}, "unknown key 'remap.layers_remapped'"),
        (VALID | {"tiers": {"hosts": 1}}, "'tiers.hosts': check its spelling; nearest: host"),
        (tenant(max_model_len=10**30), "tenants.0.max_model_len: found 10"),
        (tenant(priority=-(2**40)), "write -2147483647 or more"),
        (VALID | {"remap": {"lookahead_steps": 2**31}}, "write 2147483647 or less"),
        (VALID | {"policy": "magic"}, "policy: "),
        (VALID | {"dtype": "int8"}, "dtype: "),
        (VALID | {"device": {"memory": "64 MB/s"}}, "'64 MB/s' is not a size"),
        (VALID | {"device": {"memory": "-1"}}, "'-1' is not a size"),
        (VALID | {"device": {"memory": 0}}, "device.memory: "),
        (VALID | {"device": {"memory": True}}, "device.memory: "),
        (VALID | {"device": {"memory": "1G", "page": 5000}}, "page is 5000 bytes"),
        (VALID | {"device": {"memory": "1G", "copy_chunk": "4K"}}, "copy_chunk is 4096 bytes: use"),
        (tenant(share=0), "tenants.0.share: "),
        (tenant(share=101), "tenants.0.share: "),
        (tenant(name="a b"), "tenants.0.name: "),
        (tenant(name="a" * 300), "write 80 characters or less"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: 2024-13-45", "not YAML (month must be in 1..12)"),
        ("a: !!int x", "not YAML (invalid literal"),
        ("a: " + "9" * 5000, "not YAML (Exceeds the limit"),
        ("[" + "1, " * 9999 + "1]", "found [1, 1, 1, 1, 1, 1, ...]"),
        ("#" * 2**20 + "#", "more than 1048576 characters"),
        (VALID | {"device": {"memory": "9" * 500}}, "write 1152921504606846976 or less"),
        (tenant(max_model_len=0), "tenants.0.max_model_len: "),
        (tenant(share="half"), "tenants.0.share: "),
        (tenant(keep_alive="soon"), "'soon' is no time: write seconds, as 5m or 2h, or never"),
        (tenant(start="later"), "tenants.0.start: "),
        (tenant(max_waiting=0), "tenants.0.max_waiting: "),
        (VALID | {"roster": {"drain_s": -1}}, "roster.drain_s: "),
        (two(share=1), "tenant name 'a' is used twice"),
        (two(name="b", aliases=["a"]), "alias 'a' of tenant 'b' is the name of tenant 'a': "),
        (two(name="b", aliases=["b"]), "alias 'b' of tenant 'b' is the name of tenant 'b': "),
        (two(name="b", aliases=["c", "c"]), "'c' of tenant 'b' is the name of an alias of "),
        (VALID | {"http": {"cors": ["http://a/"]}}, "http.cors.0: "),
        (VALID | {"http": {"cors": ["null"]}}, "http.cors.0: "),
        (VALID | {"http": {"cors": ["http://*.b"]}}, "http.cors.0: "),
        (tenant(aliases=["a b"]), "tenants.0.aliases.0: "),
        (tenant(aliases=[""]), "tenants.0.aliases.0: "),
        (tenant(aliases="gpt-4o"), "tenants.0.aliases: "),
        (tenant(max_model_len=True), "tenants.0.max_model_len: "),
        (VALID | {"replay": {"window": [310, 0]}}, "window [310.0, 0.0]: write [START, END]"),
        (VALID | {"replay": {"window": [float("nan"), 5]}}, "replay.window.0: "),
        (VALID | {"replay": {"length_scale": float("inf")}}, "replay.length_scale: "),
        (VALID | {"replay": {"traffic": {"weights": {"z": 1}}}}, "no such tenant"),
        (
            VALID | {"replay": {"traffic": {"weights": {"a": -1}}}},
            "weights.a: found -1, write 0 or more",
        ),
    ],
)
def test_what_cannot_be_served_is_one_clear_line(tmp_path: Path, content: Any, words: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def aliases(levels: int) -> str:
    """A YAML text whose aliases expand to nine to the power of `levels` values."""
    first = "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"
    repeated = (", ".join([f"*x{i}"] * 9) for i in range(levels - 1))
    return "\n".join([first, *(f"x{i}: &x{i} [{it}]" for i, it in enumerate(repeated, 1))])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (aliases(30), "its aliases stand for 5.37e+28 values"),
        ("a: &a [*a]", "stand for inf values"),
    ],
)
def test_aliases_of_aliases_are_refused_before_they_are_made(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(write(tmp_path, text))


def test_an_alias_may_repeat_a_value(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            "device: {memory: 1G}\ntenants:\n"
            "- {name: a, model: m, share: 50, engine_args: &e {seed: 1}}\n"
            "- {name: b, model: m, share: 50, engine_args: *e}\n",
        )
    )
    assert [t.engine_args for t in config.tenants] == [{"seed": 1}] * 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"device: {memory: 1G} # caf\xe9", "not UTF-8 text ("),
        (b"device: {memory: 1G, memory: 2G}", "key 'memory' is written twice"),
    ],
)
def test_a_file_that_is_not_clean_yaml(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
        load(tmp_path / "none.yaml")


# -- sizes ------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", "B", "iB"]))
def test_a_number_and_its_unit_multiply(number: int, unit: str, tail: str) -> None:
    for text in (f"{number}{unit}{tail}", f" {number} {unit.lower()}{tail.lower()} "):
        assert parse_bytes(text) == number * UNITS[unit]


@given(st.integers(0, 2**53))
def test_bytes_are_taken_as_they_are(number: int) -> None:
    assert parse_bytes(number) == parse_bytes(str(number)) == number


@given(st.integers(0, 4096), st.integers(0, 3))
def test_binary_fractions_are_exact(number: int, quarters: int) -> None:
    text = f"{number + quarters / 4}MiB"
    assert parse_bytes(text) == number * 2**20 + quarters * 2**18


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        assert "is not a size" in str(error)
    else:
        assert size >= 0
        assert any(character.isdigit() for character in text)


@pytest.mark.parametrize("value", [True, None, 1.5j, [], {}, "1.2.3M", "M", "1 XB", "0x10", "1e3"])
def test_what_is_not_a_size_says_so(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(value)


def with_peers(peer: dict[str, Any], **device: Any) -> dict[str, Any]:
    more = {"device": {"kind": "cuda", "memory": "1GiB"} | device} if device else {}
    return VALID | more | {"tiers": {"host": {"bytes": "1MiB"}, "peer": peer}}


def test_peers_are_a_size_on_a_host_and_a_gpu_with_a_size_on_a_gpu(tmp_path: Path) -> None:
    peer = load(write(tmp_path, with_peers({"devices": {"a": "1MiB", "b": 7}}))).tiers.peer
    assert peer is not None and (peer.lent, peer.gpus) == ({"a": 2**20, "b": 7}, {})
    devices = {"a": {"device": 1, "bytes": "2MiB"}, "b": {"device": 0, "bytes": 5}}
    peer = load(write(tmp_path, with_peers({"devices": devices}, index=2))).tiers.peer
    assert peer is not None and peer.gpus == {"a": 1, "b": 0} and peer.bytes == 2**21 + 5


@pytest.mark.parametrize(
    ("devices", "device", "more", "words"),
    [
        ({"a": {"bytes": 1, "device": 1}}, {}, {}, "a.device is 1: leave it out on a host"),
        ({"a": 1}, {"index": 0}, {}, "tiers.peer.devices.a names no GPU: write {device: 1"),
        ({"a": {"bytes": 1, "device": 3}}, {"index": 3}, {}, "is 3, as device.index is: name"),
        (
            {"a": {"bytes": 1, "device": 1}, "b": {"bytes": 1, "device": 1}},
            {"index": 0},
            {},
            "tiers.peer.devices.b.device is 1, as tiers.peer.devices.a.device is",
        ),
        ({"a": {"bytes": 1, "device": 1}}, {"index": 0}, {"link_gb_s": 1}, "link_gb_s imitates"),
        ({"a": {"bytes": 1, "device": -1}}, {"index": 0}, {}, "tiers.peer.devices.a.device"),
        ({"a": "much"}, {}, {}, "'much' is not a size"),
    ],
)
def test_peers_that_make_no_sense(
    tmp_path: Path, devices: Any, device: Any, more: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(write(tmp_path, with_peers({"devices": devices} | more, **device)))


def test_a_link_that_leads_to_itself_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert resolved(tmp_path, "loop") == tmp_path / "loop"
    with pytest.raises(ConfigError, match="is no path: correct it"):
        resolved(tmp_path, "x\0y")


@pytest.mark.parametrize(
    ("content", "rostered"),
    [
        (VALID, False),
        (two(name="b", share=40), False),
        (two(name="b", share=41), True),
        (tenant(share="auto"), True),
        (tenant(start="eager"), True),
        (tenant(keep_alive="5m"), True),
        (VALID | {"roster": {"drain_s": 1}}, True),
    ],
)
def test_tenants_come_and_go_where_a_key_says_so_or_not_all_fit(
    tmp_path: Path, content: Any, rostered: bool
) -> None:
    assert load(write(tmp_path, content)).rostered is rostered


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(90, 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2 h", 7200.0), ("never", None)],
)
def test_a_span_of_time(tmp_path: Path, told: Any, seconds: float | None) -> None:
    config = load(write(tmp_path, tenant(keep_alive=told)))
    assert config.tenants[0].keep_alive == seconds


def test_files_of_tls_are_beside_the_file_and_keep_their_links(tmp_path: Path) -> None:
    (tmp_path / "live").symlink_to("archive")
    path = tmp_path / "c.yaml"
    tls = {"certificate": "live/site.pem", "key": "/etc/site.key"}
    path.write_text(yaml.safe_dump(VALID | {"http": {"tls": tls}}))
    told = load(path).http.model_dump()
    assert json.loads(json.dumps(told)) == told
    assert told["tls"] == {**tls, "certificate": str(tmp_path / "live" / "site.pem")}
    path.write_text(yaml.safe_dump(VALID | {"http": {"tls": {"key": "site.key"}}}))
    with pytest.raises(ConfigError, match=r"http\.tls\.certificate: "):
        load(path)
