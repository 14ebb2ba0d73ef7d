"""A file with several devices is taken apart, and who serves what is said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mirage.config import ConfigError, made
from mirage.serve.machine.parts import MachineParts, machine_parts
from mirage.serve.machine.placing import PlaceWish, placed
from mirage.serve.upgrading import upgraded_text

pytestmark = pytest.mark.pure
FILE = Path("/here/many.yaml")


def tenant(name: str, share: float | str = 40, **keys: Any) -> dict[str, Any]:
    return {"name": name, "model": "/m", "share": share} | keys


def device(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "memory": "1GiB"} | keys


def content(*tenants: dict[str, Any], **changes: Any) -> dict[str, Any]:
    devices = [device("left"), device("right", memory="2GiB")]
    return {"devices": devices, "tenants": list(tenants)} | changes


def parts(raw: dict[str, Any], **keys: Any) -> MachineParts:
    return machine_parts(raw, FILE, FILE.parent, **keys)


def names(found: MachineParts) -> dict[str, list[str]]:
    return {one.name: [t["name"] for t in one.raw["tenants"]] for one in found.devices}


def test_each_part_is_a_configuration_of_one_device() -> None:
    raw = content(
        tenant("a", device="left"), tenant("b", devices=["left", "right"]), policy="pooled"
    )
    found = parts(raw)
    assert names(found) == {"left": ["a", "b"], "right": ["b"]}
    left, right = (made(one.raw, one.path, FILE.parent) for one in found.devices)
    assert (left.device.memory, right.device.memory) == (1 << 30, 2 << 30)
    assert left.policy == right.policy == "pooled"
    assert [one.path.name for one in found.devices] == ["many.yaml#left", "many.yaml#right"]
    assert found.places["b"].devices == ("left", "right")
    assert [t.name for t in found.common.tenants] == ["a", "b"]


def test_who_names_no_device_goes_where_most_is_free() -> None:
    found = parts(content(tenant("a", 60), tenant("b", 30), tenant("c", 50, device="left")))
    assert names(found) == {"left": ["b", "c"], "right": ["a"]}
    assert found.places["a"].why == "the most is free there (100 %, its share is 60 %)"
    assert found.places["c"].why == "named in the file"


def test_more_than_a_device_has_comes_and_goes() -> None:
    told = placed(["x"], [PlaceWish("a", 70), PlaceWish("b", 60)])
    assert told["a"].devices == told["b"].devices == ("x",)
    assert told["b"].why.endswith("(30 %, its share is 60 %): tenants come and go there")
    assert placed(["x", "y"], [PlaceWish("a", None), PlaceWish("b", None)])["b"].devices == ("y",)


def test_blocks_on_a_disk_lie_apart() -> None:
    tiers = {"host": {"bytes": "1MiB"}, "ssd": {"directory": "kv", "bytes": "1MiB"}}
    found = parts(content(tenant("a"), tenant("b"), tiers=tiers))
    folders = [one.raw["tiers"]["ssd"]["directory"] for one in found.devices]
    assert folders == ["/here/kv/left", "/here/kv/right"]


def test_all_is_every_gpu() -> None:
    raw = {
        "devices": "all",
        "device": {"kind": "cuda", "memory": "70GiB"},
        "tenants": [tenant("a"), tenant("b")],
    }
    found = parts(raw, gpus=(0, 1))
    assert [one.raw["device"]["index"] for one in found.devices] == [0, 1]
    assert list(names(found)) == ["gpu0", "gpu1"]
    with pytest.raises(ConfigError, match="lists no GPU here"):
        parts(raw)


REFUSED = {
    "no device 'centre': choose from left, right": content(tenant("a", device="centre")),
    "device and devices: both say where it is served, write one": content(
        tenant("a", device="left", devices=["right"])
    ),
    "devices has 'left' twice": content(tenant("a", devices=["left", "left"])),
    "device 'right' has no tenant": content(tenant("a", device="left")),
    "two are named 'left'": content(tenant("a"), devices=[device("left"), device("left")]),
    "two have the GPU 0": content(
        tenant("a"), devices=[device("x", kind="cuda"), device("y", kind="cuda")]
    ),
    "devices.0.memory: it is missing": content(tenant("a"), devices=[{"name": "left"}]),
    "device and devices: write one of them": content(tenant("a"), device={"memory": "1GiB"}),
    "devices: all is every GPU: describe one": content(tenant("a"), devices="all"),
    "tenant name 'a' is used twice": content(
        tenant("a", device="left"), tenant("a", device="right")
    ),
    "tiers.peer is for one device": content(
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
    with pytest.raises(ConfigError, match="here write one device"):
        made(content(tenant("a")), FILE, FILE.parent)


def test_each_part_has_the_version_of_the_file() -> None:
    found = parts({"version": 1} | content(tenant("a"), tenant("b")))
    assert [one.raw["version"] for one in found.devices] == [1, 1]


def test_a_file_with_devices_is_printed_in_the_newest_keys(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    text = yaml.safe_dump(content(tenant("a"), tenant("b"), version=1))
    file.write_text(text)
    assert upgraded_text([str(file)]) == text
    file.write_text(yaml.safe_dump(content(tenant("a", device="nowhere"))))
    with pytest.raises(ConfigError, match="no device 'nowhere'"):
        upgraded_text([str(file)])
