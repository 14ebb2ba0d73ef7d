"""The secret that servers of weights ask for: one of a file, or one made of the node's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.machines.ray.actor import FOLDER
from mirage.machines.ray.node import NodeFolder, derived
from mirage.private_file import replace_private
from mirage.serve.stored import secret_of_weights

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
