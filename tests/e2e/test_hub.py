"""Models fetched from a loopback hub: whole and right in huggingface_hub's cache, or absent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from loopback_hub import LoopbackHub, loopback_hub, sha256
from model_folder import make_folder

from mirage.errors import CommandFailed
from mirage.folder.weights import tensors
from mirage.hub import fetched
from mirage.hub.commit import TRIES
from mirage.hub.outline import outline
from mirage.hub.place import HubPlace, HubRefused
from mirage.hub_name import HubName

pytestmark = pytest.mark.e2e

NAME = HubName("org/tiny")
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Model folder with the files that people upload to a hub."""
    folder = make_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("# A model")
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / "modeling_tiny.py").write_text("print('trusted')")
    return folder


@pytest.fixture
def hub(model: Path) -> Iterator[LoopbackHub]:
    with loopback_hub() as hub:
        hub.add(NAME.repository, model)
        yield hub


@pytest.fixture
def place(hub: LoopbackHub, tmp_path: Path) -> HubPlace:
    return HubPlace(hub.url, tmp_path / "cache", pause_s=0.01)


def have(place: HubPlace, name: HubName = NAME, *, code: bool = False) -> Path:
    return fetched.folder(name, place, lambda line: None, code=code)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def blobs(place: HubPlace) -> list[str]:
    return sorted(path.name for path in place.cache.glob("*/blobs/*"))


def library(place: HubPlace, code: str) -> str:
    """Output of a program that uses huggingface_hub with the hub and cache of `place`."""
    environment = {**os.environ, "HF_ENDPOINT": place.endpoint, "HF_HUB_CACHE": str(place.cache)}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"from huggingface_hub import *\n{code}"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_is_served_of_a_model_is_fetched_once_and_weights_last(
    hub: LoopbackHub, place: HubPlace, model: Path
) -> None:
    folder = have(place)
    assert names(folder) == ["config.json", WEIGHTS, "tokenizer.json"]
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert hub.fetched() == ["config.json", "tokenizer.json", WEIGHTS]
    assert have(place) == folder
    assert len(hub.fetched()) == 3


def test_code_is_fetched_if_it_is_trusted(place: HubPlace) -> None:
    assert "modeling_tiny.py" in names(have(place, code=True))


def test_the_cache_is_one_of_huggingface_hub(place: HubPlace) -> None:
    folder = have(place)
    found = library(place, "print(snapshot_download('org/tiny', local_files_only=True))")
    assert found == str(folder)
    assert library(place, "print(scan_cache_dir().warnings)") == "[]"


def test_what_huggingface_hub_has_fetched_is_not_fetched_again(
    hub: LoopbackHub, place: HubPlace
) -> None:
    found = library(place, "print(snapshot_download('org/tiny'))")
    hub.asked.clear()
    assert str(have(place)) == found
    assert hub.fetched() == []


def test_a_revision_is_a_branch_a_tag_or_a_commit(
    hub: LoopbackHub, place: HubPlace, model: Path
) -> None:
    first = have(place)
    (model / "generation_config.json").write_text("{}")
    commit = hub.add(NAME.repository, model, "refs/pr/1")
    for revision in ("refs/pr/1", commit):
        other = have(place, HubName(NAME.repository, revision))
        assert other.name == commit and "generation_config.json" in names(other)
    assert have(place) == first
    hub.add(NAME.repository, model)
    assert have(place).name == commit
    assert hub.fetched().count(WEIGHTS) == 1  # its content is the same


def test_a_connection_that_breaks_is_gone_on_with(
    hub: LoopbackHub, place: HubPlace, model: Path
) -> None:
    size = (model / WEIGHTS).stat().st_size
    hub.ends_after = size // 3 + 1
    folder = have(place)
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    ranges = [one.range for one in hub.asked if "/cdn/" in one.path]
    assert ranges == [None, *(f"bytes={hub.ends_after * n}-" for n in (1, 2))]


def test_what_came_before_an_end_is_gone_on_with_by_the_next(
    hub: LoopbackHub, place: HubPlace, model: Path
) -> None:
    etag = sha256((model / WEIGHTS).read_bytes())
    part = place.cache / "models--org--tiny" / "blobs" / f"{etag}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((model / WEIGHTS).read_bytes()[:1000])
    assert (have(place) / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert [one.range for one in hub.asked if "/cdn/" in one.path] == ["bytes=1000-"]
    assert f"{etag}.part" not in blobs(place)


@pytest.mark.parametrize("path", [WEIGHTS, "tokenizer.json"])
def test_a_file_with_another_checksum_is_not_kept(
    hub: LoopbackHub, place: HubPlace, model: Path, path: str
) -> None:
    content = (model / path).read_bytes()
    hub.lies[path] = bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(
        CommandFailed, match=rf"^org/tiny: {path}: what came has .* not (sha256|git):"
    ):
        have(place)
    folder = place.cache / "models--org--tiny"
    assert not list(folder.glob(f"snapshots/*/{path}"))
    assert not list(folder.glob("blobs/*.part"))
    hub.lies.clear()
    assert (have(place) / path).read_bytes() == content


def test_a_token_goes_to_the_hub_alone(hub: LoopbackHub, place: HubPlace) -> None:
    hub.tokens, hub.private = {"hf_secret"}, {NAME.repository}
    have(place._replace(token="hf_secret"))
    content = [one.authorization for one in hub.asked if "/cdn/" in one.path]
    others = {one.authorization for one in hub.asked if "/cdn/" not in one.path}
    assert content == [None] and others == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "org/none",
            {},
            "no such model at http://127.0.0.1:{port}/org/none (401), and no ",
        ),
        ("org/tiny@v9", {}, "the hub has no such revision of it (404)"),
        ("org/tiny", {"gated": {"org/tiny"}}, "that were granted access (401): ask for it at"),
        ("org/tiny", {"private": {"org/tiny"}}, "there is no such model at"),
    ],
)
def test_a_refusal_is_one_line_and_nothing_is_kept(
    hub: LoopbackHub, place: HubPlace, name: str, change: dict[str, set[str]], words: str
) -> None:
    for key, value in change.items():
        setattr(hub, key, value)
    repository, _, revision = name.partition("@")
    with pytest.raises(HubRefused) as refused:
        have(place, HubName(repository, revision or "main"))
    line = str(refused.value)
    assert line.startswith(f"{name}: ") and "\n" not in line
    assert words.format(port=hub.server_port) in line
    assert blobs(place) == []


def test_a_token_that_is_not_valid_is_refused(hub: LoopbackHub, place: HubPlace) -> None:
    with pytest.raises(HubRefused, match=r"^org/tiny: the hub does not take the token \(401\)"):
        have(place._replace(token="hf_old"))


def test_weights_that_are_pickled_are_refused(hub: LoopbackHub, place: HubPlace) -> None:
    hub.add("org/old", {"config.json": b"{}", "pytorch_model.bin": b"pickled"})
    with pytest.raises(HubRefused, match=r"^org/old: it has no \*.safetensors, only such as 'pyto"):
        have(place, HubName("org/old"))
    assert hub.fetched() == ["config.json"]


def test_shards_are_those_of_the_index(hub: LoopbackHub, place: HubPlace) -> None:
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    parts = dict.fromkeys(("a.safetensors", "b.safetensors", "consolidated.safetensors"), b"x")
    told = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    hub.add("org/parts", told | parts)
    folder = have(place, HubName("org/parts"))
    assert names(folder) == ["a.safetensors", "b.safetensors", *sorted(told)]


# Without a hub.


def test_without_a_hub_what_is_in_the_cache_is_served(hub: LoopbackHub, place: HubPlace) -> None:
    folder = have(place)
    hub.status = 503
    said: list[str] = []
    assert fetched.folder(NAME, place, said.append, code=False) == folder
    (line,) = said
    assert line.startswith(f"org/tiny: commit {folder.name} from the cache, since {hub.url} does")
    assert have(place._replace(endpoint="http://127.0.0.1:9")) == folder
    hub.asked.clear()
    assert have(place._replace(offline=True)) == folder
    assert have(place._replace(offline=True), HubName(NAME.repository, folder.name)) == folder
    assert hub.asked == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offline": True}, "HF_HUB_OFFLINE is set, and it is neither in the cache ("),
        (
            {"endpoint": "http://127.0.0.1:9"},
            "refused), and it is neither in the cache (",
        ),
    ],
)
def test_without_a_hub_what_is_not_in_the_cache_is_refused(
    place: HubPlace, change: dict[str, object], words: str
) -> None:
    with pytest.raises(HubRefused) as refused:
        have(place._replace(**change))
    assert str(refused.value).startswith("org/tiny: ") and words in str(refused.value)


def test_a_part_in_the_cache_is_not_served(hub: LoopbackHub, place: HubPlace) -> None:
    fetched.found(NAME, place, code=False)
    folder = fetched.found(NAME, place, code=False).commit.folder
    offline = place._replace(offline=True)
    with pytest.raises(HubRefused, match="only a part is in the cache"):
        have(offline, HubName(NAME.repository, folder.name))


def test_a_hub_that_fails_is_given_up_and_what_has_come_is_kept(
    hub: LoopbackHub, place: HubPlace
) -> None:
    model = fetched.found(NAME, place, code=False)
    hub.status = 500
    with pytest.raises(
        CommandFailed, match=r"^org/tiny: model.safetensors: .*HTTP 500.*run it again"
    ):
        fetched.fetch_weights(model, lambda line: None)
    assert len([one for one in hub.asked if WEIGHTS in one.path]) == TRIES


def test_what_is_no_hub_is_told(hub: LoopbackHub, place: HubPlace) -> None:
    hub.claims["config.json"] = -1
    with pytest.raises(HubRefused, match=r"does not answer as a hub does .*: correct HF_ENDPOINT$"):
        have(place)


# The cache.


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    hub: LoopbackHub, place: HubPlace
) -> None:
    hub.claims[WEIGHTS] = 2**55
    with pytest.raises(
        HubRefused, match=r"32,768.0 TiB are to be fetched, the disk of .* make room"
    ):
        have(place)
    assert hub.fetched() == ["config.json", "tokenizer.json"]


def test_content_that_another_commit_has_brought_needs_no_room(
    hub: LoopbackHub, place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = have(place)
    (folder / WEIGHTS).unlink()  # a link; its content stays
    fetched_before = hub.fetched()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert names(have(place)) == ["config.json", WEIGHTS, "tokenizer.json"]
    assert hub.fetched() == fetched_before


def test_a_cache_that_cannot_be_written_is_told(place: HubPlace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        HubRefused, match=r"the cache .*/file/x cannot be written \(Not a directory\)"
    ):
        have(place._replace(cache=tmp_path / "file" / "x"))


# Before anything large is fetched.


def test_an_outline_says_of_a_model_what_its_weights_would(
    hub: LoopbackHub, place: HubPlace, model: Path, tmp_path: Path
) -> None:
    found = fetched.found(NAME, place, code=False)
    assert found.bytes == (model / WEIGHTS).stat().st_size
    folder = outline(found, tmp_path / "outlines")
    assert names(folder) == ["config.json", WEIGHTS, "tokenizer.json"]
    assert tensors(folder) == tensors(model)
    assert (folder / WEIGHTS).stat().st_size == found.bytes
    assert [one.range for one in hub.asked if "/cdn/" in one.path] == ["bytes=0-131071"]
    have(place)
    assert outline(fetched.found(NAME, place, code=False), tmp_path) == found.commit.folder


def test_a_long_header_is_read_whole(hub: LoopbackHub, place: HubPlace, tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"x": "y" * 300_000}}).encode()
    content = len(header).to_bytes(8, "little") + header
    hub.add("org/long", {"config.json": b"{}", WEIGHTS: content})
    found = fetched.found(HubName("org/long"), place, code=False)
    assert (outline(found, tmp_path / "o") / WEIGHTS).read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"<html>", (2**40).to_bytes(8, "little") + b"x" * 90])
def test_what_is_no_safetensors_is_refused(
    hub: LoopbackHub, place: HubPlace, tmp_path: Path, content: bytes
) -> None:
    hub.add("org/odd", {"config.json": b"{}", WEIGHTS: content})
    found = fetched.found(HubName("org/odd"), place, code=False)
    with pytest.raises(
        HubRefused, match=r"^org/odd: model.safetensors is no whole safetensors file"
    ):
        outline(found, tmp_path / "o")
