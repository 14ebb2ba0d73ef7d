"""Names of models of the Hugging Face hub, and texts that are paths instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from model_folder import make_folder

from mirage.config import load
from mirage.hub_name import HubName, hub_name

pytestmark = pytest.mark.pure
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Qwen/Qwen3-8B", HubName("Qwen/Qwen3-8B", "main")),
        ("a/b@v1.0", HubName("a/b", "v1.0")),
        ("a/b@refs/pr/3", HubName("a/b", "refs/pr/3")),
        (f"a/b@{COMMIT}", HubName("a/b", COMMIT)),
        ("01-ai/Yi_6.B", HubName("01-ai/Yi_6.B")),
    ],
)
def test_a_name_has_an_organisation_and_perhaps_a_revision(written: str, meant: HubName) -> None:
    assert hub_name(written) == meant
    assert hub_name(str(meant)) == meant


@pytest.mark.parametrize(
    "written",
    [
        *("gpt2", "../models/opt", "a/../b", "/a/b", "a/b/c", "./a", "a/", "a/b@", "a/b@../x"),
        *(
            "a/b@x/",
            "a--b/c",
            "a/.b",
            "a/b.",
            "a/b.git",
            f"a/{'b' * 95}",
            "a b/c",
            "ä/b",
            "",
            "~/a",
        ),
        *("a/b@v1@v2", "hf://a/b", "https://a/b", "a\\b"),
    ],
)
def test_what_is_no_name_is_a_path(written: str) -> None:
    assert hub_name(written) is None


@pytest.mark.parametrize(
    ("revision", "pinned"), [(COMMIT, True), (COMMIT[:12], False), (COMMIT.upper(), False)]
)
def test_a_commit_is_named_in_full(revision: str, pinned: bool) -> None:
    assert HubName("a/b", revision).pinned is pinned


def test_a_folder_that_is_there_is_no_name(tmp_path: Path) -> None:
    make_folder(tmp_path / "org" / "here")
    tenants = [
        {"name": name, "model": model, "share": 50}
        for name, model in {"a": "org/here", "b": "org/there@v2"}.items()
    ]
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"device": {"memory": "1GiB"}, "tenants": tenants}))
    here, there = load(file).tenants
    assert (here.model, here.hub) == (tmp_path.resolve() / "org" / "here", None)
    assert (str(there.model), there.hub) == ("org/there@v2", HubName("org/there", "v2"))
