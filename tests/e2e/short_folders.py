"""Folders for the temporary files of commands, with names that leave room for sockets' names."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


short = pytest.fixture(_folder, name="short")
"""A folder of each test."""
short_of_module = pytest.fixture(_folder, scope="module", name="short")
"""One folder of all tests of a module that imports this."""
