"""Fixtures of this layer. Each session is checked for files that it leaves in /dev/shm."""

import signal
import sys

import pytest
from left_shared import pytest_configure  # noqa: F401
from short_folders import short  # noqa: F401

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in the background of a script. Commands that tests start would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if a test file imports vLLM when it is collected: every worker process of pytest would
    import it too, which takes ten seconds. `tests.ids` collects this layer beside those that do.
    """
    if "vllm" in sys.modules and not session.config.option.collectonly:
        raise pytest.UsageError("a test of this layer imports vLLM when it is collected")
