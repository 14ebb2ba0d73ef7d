"""Progress of an engine's start, read from the engine's log."""

from pathlib import Path

import pytest

from mirage.serve.logs.engine_log import SHORT_LINE, last_progress

pytestmark = pytest.mark.pure

NOISE = "Triton is installed, but doesn't include CPU backend. Disabling Triton.\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (NOISE, ""),
        ("Loading safetensors checkpoint shards: 100% Completed\n" + NOISE + "\n  \n",
         "Loading safetensors checkpoint shards: 100% Completed"),
        ("(EngineCore pid=7) INFO 11-23 10:00:00 [x.py:9] Capturing CUDA graphs\n",
         "Capturing CUDA graphs"),
        ("Loading\r  5% | \r 50% |  1/2", "50% | 1/2"),
        ("loading " + "x" * 5000, "loading " + "x" * (SHORT_LINE - 8)),
    ],
)  # fmt: skip
def test_the_newest_line_that_tells_of_it(tmp_path: Path, text: str, words: str) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert last_progress(log) == words


def test_nothing_of_an_earlier_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n")
    assert last_progress(log, 8) == ""
    assert last_progress(tmp_path / "none") == ""
