"""Division of a file with several devices into a configuration for each, and files that are refused
in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mirage.config import ConfigError, made
from mirage.serve.commands.upgrade import upgraded_text
from mirage.serve.machine.parts import MachineFile, machine_file

pytestmark = pytest.mark.pure
FILE = Path("/here/many.yaml")


def tenant(name: str, share: float | str = 40, **keys: Any) -> dict[str, Any]:
    return {"name": name, "model": "/m", "share": share} | keys


def device(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "memory": "1GiB"} | keys


def content(*tenants: dict[str, Any], **changes: Any) -> dict[str, Any]:
    devices = [device("left"), device("right", memory="2GiB")]
    return {"devices": devices, "tenants": list(tenants)} | changes


def parts(raw: dict[str, Any], **keys: Any) -> MachineFile:
    return machine_file(raw, FILE, FILE.parent, **keys)


def test_each_part_is_a_configuration_of_one_device() -> None:
    raw = content(
        tenant("a", device="left"), tenant("b", devices=["left", "right"]), policy="pooled"
    )
    found = parts(raw)
    assert found.named == {"a": ("left",), "b": ("left", "right")}
    every = [found.part("left", ["a", "b"]), found.part("right", ["b"])]
    left, right = (made(one.raw, one.path, FILE.parent) for one in every)
    assert [t.name for t in left.tenants] == ["a", "b"]
    assert [t.name for t in right.tenants] == ["b"]
    assert (left.device.memory, right.device.memory) == (1 << 30, 2 << 30)
    assert left.policy == right.policy == "pooled"
    assert [one.path.name for one in every] == ["many.yaml#left", "many.yaml#right"]
    assert [t.name for t in found.common.tenants] == ["a", "b"]


def test_a_device_of_several_may_be_empty_and_no_other() -> None:
    part = parts(content(tenant("a"))).part("right", ())
    assert made(part.raw, part.path, FILE.parent).tenants == []
    with pytest.raises(ConfigError, match=r"tenants: found \[\], write 1 entry"):
        made({"device": {"memory": "1GiB"}, "tenants": []}, FILE, FILE.parent)
    with pytest.raises(ConfigError, match="unknown key 'placement'"):
        made({"device": {"memory": "1GiB"}, "tenants": [tenant("a")], "placement": {}}, FILE, FILE)


def test_rules_of_moves_are_a_section() -> None:
    found = parts(content(tenant("a"), placement={"decide_s": 5.0, "gain_percent": 2.0}))
    assert found.placement.decide_s == 5 and found.placement.rules.gain == 0.02
    with pytest.raises(ConfigError, match=r"placement\.decide_s"):
        parts(content(tenant("a"), placement={"decide_s": 0}))


def test_blocks_on_a_disk_lie_apart() -> None:
    tiers = {"host": {"bytes": "1MiB"}, "ssd": {"directory": "kv", "bytes": "1MiB"}}
    found = parts(content(tenant("a"), tenant("b"), tiers=tiers))
    every = [found.part(name, ["a", "b"]) for name in found.devices]
    folders = [one.raw["tiers"]["ssd"]["directory"] for one in every]
    assert folders == ["/here/kv/left", "/here/kv/right"]


def test_all_is_every_gpu() -> None:
    raw = {
        "devices": "all",
        "device": {"kind": "cuda", "memory": "70GiB"},
        "tenants": [tenant("a"), tenant("b")],
    }
    found = parts(raw, gpus=(0, 1))
    assert [found.part(name, ()).raw["device"]["index"] for name in found.devices] == [0, 1]
    assert list(found.devices) == ["gpu0", "gpu1"]
    with pytest.raises(ConfigError, match="lists no GPU here"):
        parts(raw)


REFUSED = {
    "no device 'centre': choose from left, right": content(tenant("a", device="centre")),
    "tenants.0: device and devices are both written: write only one of them": content(
        tenant("a", device="left", devices=["right"])
    ),
    "devices names 'left' twice: name each device once": content(
        tenant("a", devices=["left", "left"])
    ),
    "tenants: found [], write 1 entry": content(),
    "two are named 'left': give each another name": content(
        tenant("a"), devices=[device("left"), device("left")]
    ),
    "'x' and 'y' have the same GPU, index 0: give each another index": content(
        tenant("a"), devices=[device("x", kind="cuda"), device("y", kind="cuda")]
    ),
    "devices.0.memory: it is missing": content(tenant("a"), devices=[{"name": "left"}]),
    "many.yaml: device and devices are both written: write only one of them": content(
        tenant("a"), device={"memory": "1GiB"}
    ),
    "devices: all needs a section device with kind: cuda": content(tenant("a"), devices="all"),
    "device.index 1: leave it out, because devices: all takes every GPU": content(
        tenant("a"), devices="all", device={"kind": "cuda", "memory": "1GiB", "index": 1}
    ),
    "tenant name 'a' is used twice": content(
        tenant("a", device="left"), tenant("a", device="right")
    ),
    "tiers.peer cannot be used with devices: leave it out": content(
        tenant("a"), tenant("b"), tiers={"host": {"bytes": 1}, "peer": {"devices": {"p": "1MiB"}}}
    ),
    "unknown key 'tenants.0.devise'": content(tenant("a", devise="left")),
    "tenants: it is missing": {"devices": [device("left")]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as told:
        parts(REFUSED[words])
    assert words in str(told.value) and "\n" not in str(told.value)
    assert str(told.value).startswith("/here/many.yaml")


def test_other_commands_say_that_they_take_one_device() -> None:
    with pytest.raises(ConfigError, match="write one device here"):
        made(content(tenant("a")), FILE, FILE.parent)


def test_each_part_has_the_version_of_the_file() -> None:
    found = parts({"version": 1} | content(tenant("a"), tenant("b")))
    assert [found.part(name, ()).raw["version"] for name in found.devices] == [1, 1]


def test_a_file_with_devices_is_printed_in_the_newest_keys(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    text = yaml.safe_dump(content(tenant("a"), tenant("b"), version=1))
    file.write_text(text)
    assert upgraded_text([str(file)]) == text
    file.write_text(yaml.safe_dump(content(tenant("a", device="nowhere"))))
    with pytest.raises(ConfigError, match="no device 'nowhere'"):
        upgraded_text([str(file)])
