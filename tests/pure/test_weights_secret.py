"""The secret of servers of weights: that of a file, or one derived from the node's."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from mirage.errors import InputRefused
from mirage.machines.ray.actor import FOLDER
from mirage.machines.ray.commands import node_command
from mirage.machines.ray.node import NodeFolder, derived
from mirage.private_file import replace_private
from mirage.serve.models.stored import secret_of_weights

pytestmark = pytest.mark.pure


def test_it_is_made_of_the_secret_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "node"))
    assert secret_of_weights(None) is None, "this machine has no node"
    NodeFolder().make_secret()
    own = NodeFolder().secret()
    made = secret_of_weights(None)
    assert made and made not in {own, derived(own, "ray"), derived(own, "devices")}

    other = tmp_path / "node 2"
    monkeypatch.setenv(FOLDER, str(other))
    NodeFolder().take_secret(tmp_path / "node" / "secret")
    assert secret_of_weights(None) == made, "all machines of the cluster know it"

    file = tmp_path / "file"
    replace_private(file, b"a secret of a file")
    assert secret_of_weights(file) == "a secret of a file"


def test_a_copy_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    folder, copy = NodeFolder(tmp_path / "node"), tmp_path / "copy"
    folder.make_secret()
    own = folder.secret()
    for text in (b"", b"\n", b"too short"):
        replace_private(copy, text)
        with pytest.raises(InputRefused, match="copy: no secret, which has 16 characters or more"):
            folder.take_secret(copy)
    assert folder.secret() == own


def test_the_variable_of_the_folder_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    assert FOLDER in page.read_text()
    folder = inspect.signature(node_command).parameters["folder"].annotation
    assert FOLDER in str(folder)
