"""The single line of a failed engine's log that the server shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mirage.serve.logs import engine_log
from mirage.serve.logs.engine_log import last_error, last_progress

pytestmark = pytest.mark.e2e

NOISE = """\
(APIServer pid=7) WARNING 11-21 04:17:04 [system_utils.py:255] errors like `OSError: [Errno 24]
  warnings.warn(
"""

CORE = """\
(EngineCore pid=8) ERROR 11-21 04:17:44 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-21 04:17:44 [core.py:1510]   File "x.py", line 1, in load
(EngineCore pid=8) ERROR 11-21 04:17:44 [core.py:1510] st.SafetensorError: incomplete metadata
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above.
"""

PYDANTIC = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (4096) is greater than 2048
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", None),
        ("started\nserving\n", None),
        (NOISE, None),
        (NOISE + CORE, "st.SafetensorError: incomplete metadata"),
        (NOISE + PYDANTIC, "Value error, User-specified max_model_len (4096) is greater than 2048"),
        ("usage: [--log-error-stack]\nx.py: error: unrecognized arguments: --a\n",
         "x.py: error: unrecognized arguments: --a"),
        ("KeyError: 'a'\nValueError: " + "b" * 1000, "ValueError: " + "b" * 288),
        ("\x1b[31mValueError\x1b[0m: a\x1b]0;b\x07\x9b2Jc\n", "ValueError: a]0;b2Jc"),
    ],
)  # fmt: skip
def test_the_cause_is_found(tmp_path: Path, log: str, line: str | None) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert last_error(path) == line


def test_what_an_earlier_run_wrote_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("ValueError: old\n")
    assert last_error(path, path.stat().st_size) is None


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_log, "ERROR_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("ValueError: long ago\n" + "serving\n" * 100)
    assert last_error(path) is None
    with path.open("a") as log:
        log.write("ValueError: now\n" + "serving\n" * 10)
    assert last_error(path) == "ValueError: now"


@pytest.mark.parametrize("read", [last_error, last_progress])
def test_a_log_of_gigabytes_takes_no_memory(
    tmp_path: Path, read: Callable[[Path, int], str | None]
) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.truncate(1 << 36)
        log.seek(0, 2)
        log.write(b"\nOSError: loading\n")
    assert "loading" in (read(path, 100) or "")


def test_a_line_without_end_is_not_searched_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("ValueError: now\n" + "a." * 400_000)
    assert last_error(path) == "ValueError: now"


def test_a_log_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert last_error(tmp_path / "none") is None
    (tmp_path / "log").write_bytes(b"\xff\xfe\nOSError: \xff\n")
    assert last_error(tmp_path / "log") == "OSError: \ufffd"
