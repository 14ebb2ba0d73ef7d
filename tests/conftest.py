"""Every test file belongs to exactly one layer, the one of its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

LAYERS = ("pure", "vmm", "engine", "e2e", "long")
HERE = Path(__file__).parent

# Helpers stand beside the tests that use them.
for layer in LAYERS:
    sys.path.insert(0, str(HERE / layer))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).relative_to(HERE).parts[0]
        marks = {mark.name for mark in item.iter_markers() if mark.name in LAYERS}
        if marks != {folder}:
            raise pytest.UsageError(
                f"{item.path}: marked {sorted(marks) or 'with no layer'}, but lies in {folder}/"
            )
