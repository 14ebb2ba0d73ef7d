"""Temporary folders with short names, because a Unix socket's path may have 108 bytes only."""

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
