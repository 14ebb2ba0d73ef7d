"""The one line that is shown of a failed engine's log."""

from pathlib import Path

import pytest

from mirage.serve.process import last_error

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


def test_a_log_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert last_error(tmp_path / "none") is None
    (tmp_path / "log").write_bytes(b"\xff\xfe\nOSError: \xff\n")
    assert last_error(tmp_path / "log") == "OSError: \ufffd"
