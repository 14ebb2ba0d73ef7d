"""Layers and marks of tests: a test's layer is its folder, and its marks say which
command runs it.
"""

from __future__ import annotations

import gc
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings

from tests.commands import CHOICE, COMMANDS, SEED, commands_of, left_out

# How long an example takes says how busy the machine is.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

LAYERS = ("pure", "lab", "vmm", "engine", "e2e", "long")
HERE = Path(__file__).parent

# Helpers stand beside the tests that use them.
for layer in LAYERS:
    sys.path.insert(0, str(HERE / layer))


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed once, before pytest has workers, which inherit it."""
    command = os.environ.get(CHOICE)
    if command not in (None, *COMMANDS):
        raise pytest.UsageError(f"{CHOICE}={command}: one of {', '.join(COMMANDS)}")
    os.environ.setdefault(SEED, datetime.now(UTC).strftime("%Y%m%d"))


def pytest_report_header() -> str:
    return f"tests of: make {os.environ.get(CHOICE, '(all that are named)')}, {_repeat()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed again after a failure, where it is seen also with -q."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"drawn with {_repeat()}")


def _repeat() -> str:
    return f"{SEED}={os.environ[SEED]}"


@pytest.hookimpl(trylast=True)  # Hypothesis marks its tests in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _check_layer(item)
    command = os.environ.get(CHOICE)
    products = {item.nodeid: found for item in items if (found := _product(item))}
    files = {item.nodeid: found for item in items if (found := _file(item))}
    undrawn = left_out(os.environ[SEED], products, command)
    undrawn |= left_out(os.environ[SEED], files, command)
    out = [item for item in items if item.nodeid in undrawn or not _runs(item, command)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later garbage collections, which take seconds else."""
    gc.collect()
    gc.freeze()


def _check_layer(item: pytest.Item) -> None:
    folder = item.path.relative_to(HERE).parts[0]
    marks = _marks(item) & set(LAYERS)
    if marks != {folder}:
        raise pytest.UsageError(
            f"{item.path}: marked {sorted(marks) or 'with no layer'}, but lies in {folder}/"
        )


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def _runs(item: pytest.Item, command: str | None) -> bool:
    return command is None or command in commands_of(_marks(item))


def _product(item: pytest.Item) -> tuple[str, object] | None:
    """Name of a test with its other parameters, and the value of its drawn parameter; None if
    nothing is drawn.

    Tests that are drawn `together` are one product, whatever their other parameters are.
    """
    mark = item.get_closest_marker("drawn")
    if mark is None:
        return None
    (name,) = mark.args
    parameters = dict(item.callspec.params)  # type: ignore[attr-defined]
    value = parameters.pop(name)
    if (together := mark.kwargs.get("together")) is not None:
        return str(together), value
    # A function's address differs in each process, and processes share the tests of a draw.
    others = {key: getattr(other, "__name__", other) for key, other in parameters.items()}
    return f"{item.nodeid.partition('[')[0]} {others}", value


def _file(item: pytest.Item) -> tuple[str, object] | None:
    """Group of the test's file and the file's name, if one file of the group is drawn for slow
    tests; else None.
    """
    mark = item.get_closest_marker("one_of")
    if mark is None or item.get_closest_marker("slow") is None:
        return None
    (group,) = mark.args
    return str(group), item.path.name
