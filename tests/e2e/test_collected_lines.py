"""A test that has seen an effect of a process has the lines that the process wrote before."""

from __future__ import annotations

import os
import threading

import pytest
from collected_lines import CollectedLines

pytestmark = pytest.mark.e2e


def test_a_line_is_there_as_soon_as_it_was_written() -> None:
    ours, theirs = os.pipe()
    lines = CollectedLines(ours)
    os.close(ours)
    for number in range(2000):
        os.write(theirs, f"{number}\n".encode())
        assert lines.now()[number:] == [f"{number}\n"]
    os.write(theirs, b"not a")
    assert len(lines.now()) == 2000
    os.write(theirs, b" line")
    os.close(theirs)
    assert lines.now()[2000:] == ["not a line"]


def test_who_writes_much_waits_for_nobody() -> None:
    ours, theirs = os.pipe()
    lines = CollectedLines(ours)
    os.close(ours)
    writing = threading.Thread(target=lambda: os.write(theirs, b"line\n" * 200_000), daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive()
    os.close(theirs)
    assert lines.now() == ["line\n"] * 200_000
