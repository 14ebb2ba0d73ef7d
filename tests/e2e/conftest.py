"""Fixtures of this layer. Each session is checked for files that it leaves in /dev/shm."""

import signal
import sys

import pytest
from left_shared import pytest_configure  # noqa: F401
from short_folders import short  # noqa: F401

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in the background of a script. Commands that tests start would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "test_serve_frozen.py",
    "test_serve_adopted.py",
    "test_serve_roster.py",
    "test_weights.py",
    "test_replay_client.py",
    "test_serve_lifecycle.py",
    "test_cluster_slow.py",
    "test_simulate.py",
    "test_weights_hostile.py",
    "test_serve_moves.py",
    "test_serve_devices.py",
)
"""Files that take longer than half a minute. They run first, so that at the end none of the
processes that run tests has a long file left while the others wait.
"""


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests hardly wait for the supervisor's word on how their engine ended. There is no
    supervisor.
    """
    monkeypatch.setattr("mirage.serve.router.broken.BLAME_S", 0.2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if a test file imports vLLM when it is collected: every worker process of pytest would
    import it too, which takes ten seconds. `tests.ids` collects this layer beside those that do.
    """
    if "vllm" in sys.modules and not session.config.option.collectonly:
        raise pytest.UsageError("a test of this layer imports vLLM when it is collected")
