"""Versions of the configuration file: read, refused, and rewritten with what people wrote in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mirage import config_versions
from mirage.config import ConfigError, load, parsed
from mirage.config_versions import Keys, upgraded
from mirage.rewriting import rewritten
from mirage.serve.apply.source import written
from mirage.serve.commands.upgrade import upgraded_text

pytestmark = pytest.mark.pure

TODAY = """\
# Two models of one team.
device:
  memory: 1GiB   # half of the machine
tenants:
  # the small one
  - {name: a, model: a, share: 50}
  - name: b
    model: b
    share: 50   # may grow
    priority: 2
policy: mirage
"""
OLDER = """\
# Two models of one team.
device:
  bytes: 1GiB   # half of the machine
tenants:
  # the small one
  - {name: a, model: a, percent: 50}
  - name: b
    model: b
    percent: 50   # may grow
    verbose: true   # nobody knows why
    importance: low
kind_of_sharing: mirage
"""


RENAMED = {"bytes": "memory", "percent": "share", "kind_of_sharing": "policy"}


def later(keys: Keys) -> Keys:
    """Made-up upgrade of a configuration to the next version: it renames keys, changes values and
    removes a key.
    """
    return {RENAMED.get(key, key): _later(value) for key, value in keys.items()}


def _later(value: Any) -> Any:
    if isinstance(value, list):
        return [_later(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if k not in ("verbose", "importance")}
    if "importance" in value:
        kept["priority"] = {"low": 2}.get(value["importance"], 0)
    return later(kept)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program act as a release whose configurations have version 2, reached from today's by
    `later`.
    """
    monkeypatch.setattr(config_versions, "STEPS", (later,))


def file(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [TODAY, f"version: 1\n{TODAY}"])
def test_a_file_of_the_first_version_need_not_say_so(text: str, tmp_path: Path) -> None:
    assert [tenant.name for tenant in load(file(tmp_path, text)).tenants] == ["a", "b"]
    assert upgraded_text([str(tmp_path / "c.yaml")]) == text


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("7", "version is 7, and 1 is the newest that this release reads: install a newer"),
        ("0", "version is 0: write a whole number from 1 to 1, or leave it out for 1"),
        ("'1'", "version is '1': write a whole number"),
        (f"'{'1' * 5000}'", f"version is '{'1' * 99}: write a whole number"),
        ("true", "version is True: write a whole number"),
        ("1.0", "version is 1.0: write a whole number"),
        ("", "version is None: write a whole number"),
    ],
)
def test_another_version_is_refused_in_one_line(told: str, words: str, tmp_path: Path) -> None:
    path = file(tmp_path, f"version: {told}\n{TODAY}")
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: {words}")
    assert "\n" not in str(refused.value)


def test_a_newer_version_is_told_before_keys_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="version is 2"):
        load(file(tmp_path, f"version: 2\nnew_section: {{}}\n{TODAY}"))


@pytest.mark.usefixtures("second")
@pytest.mark.parametrize("number", ["", "version: 1\n"])
def test_an_older_file_is_served(number: str, tmp_path: Path) -> None:
    made = load(file(tmp_path, number + OLDER))
    assert made.device.memory == 2**30
    assert [(t.name, t.share, t.priority) for t in made.tenants] == [("a", 50, 0), ("b", 50, 2)]
    kept = written(OLDER, tmp_path / "c.yaml", tmp_path)
    assert kept.raw["version"] == 2, "what is kept of it says in which words it is"
    assert kept.raw["policy"] == "mirage"


@pytest.mark.usefixtures("second")
def test_a_file_says_its_version_once_there_is_another(tmp_path: Path) -> None:
    assert load(file(tmp_path, f"version: 2\n{TODAY}")).tenants[1].priority == 2
    with pytest.raises(ConfigError, match=r"device\.memory: it is missing"):
        load(file(tmp_path, f"version: 2\n{OLDER}"))


@pytest.mark.usefixtures("second")
def test_an_older_file_is_rewritten_with_its_comments(tmp_path: Path) -> None:
    assert (
        upgraded_text([str(file(tmp_path, OLDER))])
        == """\
# Two models of one team.
version: 2
device:
  memory: 1GiB   # half of the machine
tenants:
  # the small one
  - {name: a, model: a, share: 50}
  - name: b
    model: b
    share: 50   # may grow
    priority: 2
policy: mirage
"""
    )


@pytest.mark.usefixtures("second")
def test_a_number_that_is_there_is_changed_where_it_stands(tmp_path: Path) -> None:
    told = upgraded_text([str(file(tmp_path, f"{OLDER}version: 1   # of last year\n"))])
    assert told.endswith("policy: mirage\nversion: 2   # of last year\n")


@pytest.mark.usefixtures("second")
def test_what_cannot_be_kept_is_written_anew(tmp_path: Path) -> None:
    """A file with a YAML alias, one value in two places, cannot be changed in place. Its upgrade is
    written anew, with the same content.
    """
    text = OLDER.replace("percent: 50}", "percent: &half 50}").replace(
        "percent: 50 ", "percent: *half "
    )
    told = upgraded_text([str(file(tmp_path, text))])
    assert parsed(told, "it") == upgraded(parsed(text, "it"))


NAMES = st.text("abcxyz", min_size=1, max_size=3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "1e3", "on", "a: b", "#", "ä"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
CONTENTS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)


@given(CONTENTS, CONTENTS, st.booleans())
def test_a_rewritten_text_has_the_content_that_is_wanted(
    before: dict[str, Any], after: dict[str, Any], flow: bool
) -> None:
    text = yaml.safe_dump(before, sort_keys=False, default_flow_style=flow)
    before = parsed(text, "it")  # as it is read
    found = parsed(rewritten(text, before, after), "it")
    assert json.dumps(found, sort_keys=True) == json.dumps(after, sort_keys=True)
