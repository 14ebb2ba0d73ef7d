"""A cleaner removes files in a run's folders: this is noticed, logged, and they are made again."""

import asyncio
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervised import Served, assert_gone, serving, write_config

from mirage.serve.device.caretaker import Caretaker, unreachable
from mirage.serve.rundir.folders import socket_name

pytestmark = pytest.mark.e2e


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder in place of the user's private runtime folder."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def pids(served: Served, model: str) -> Any:
    """Process ids of a tenant's engine; None if the tenant does not serve."""
    body = {"model": model, "prompt": "pids"}
    status, answer = served.request("POST", "/v1/completions", body)
    return answer if status == 200 else None


def is_back(served: Served) -> bool:
    """True if the tenant is ready again after one restart. It is not asked with a request, which
    could be blamed for the engine's end.
    """
    status, told = served.request("GET", "/mirage/state")
    if status == 503:
        return False  # the supervisor's socket is not made again yet
    return (told["engines"]["a"]["state"], told["engines"]["a"]["restarts"]) == ("ready", 1)


def folder_of(served: Served) -> Path:
    folder = served.run_folder()
    assert folder is not None
    return folder


def test_an_engine_whose_socket_is_gone_is_started_again(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        served.drain()
        first, other = pids(served, "a"), pids(served, "b")
        (folder_of(served) / socket_name("engine", "a")).unlink()
        served.until("a is back", lambda: is_back(served))
        assert (
            "mirage: a: its engine cannot be reached (its socket is gone): it is ended\n"
            in served.log
        )
        assert pids(served, "a") != first
        assert pids(served, "b") == other, "the other one does not notice"
        assert served.request("GET", "/health")[1]["status"] == "ok"


def test_its_state_says_so_if_it_cannot_be(tmp_path: Path) -> None:
    once = tmp_path / "once"
    environment = {"FAKE_ENGINE": f"once:{once}"}
    with serving(write_config(tmp_path, "a"), environment=environment) as served:
        (folder_of(served) / socket_name("engine", "a")).unlink()
        served.until("a is down", lambda: served.engine_state("a") != "ready")
        assert served.request("GET", "/health")[0] == 503
        body = {"model": "a", "prompt": "pids"}
        assert served.request("POST", "/v1/completions", body)[0] == 503


@pytest.mark.parametrize("what", ["sockets", "all"])
def test_what_an_engine_needs_to_start_is_made_again(
    tmp_path: Path, runtime: Path, what: str
) -> None:
    """Sockets, or whole folders, are removed. The engine ends and starts again, which it can only
    with a new control socket.
    """
    (runtime / "tmp").mkdir()
    environment = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime / "tmp")}
    with serving(write_config(tmp_path, "a"), environment=environment) as served:
        first, sockets = pids(served, "a"), folder_of(served)
        (files,) = (runtime / "tmp").iterdir()
        if what == "all":
            shutil.rmtree(files)
            shutil.rmtree(sockets)
        else:
            for path in sockets.glob("*.sock"):
                path.unlink()
        served.until("a is back", lambda: is_back(served))
        assert pids(served, "a") not in (None, first)
        assert (sockets / "control.sock").is_socket() and (files / "t").is_dir()
        family = served.family()
        served.process.kill()  # and all of it goes
        served.process.wait()
        assert_gone(family)
        assert not sockets.exists() and not files.exists()


def test_whether_somebody_listens_at_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    assert unreachable(path) == "its socket is gone"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert unreachable(path) == "nobody listens at its socket"
        server.listen(0)
        assert unreachable(path) == unreachable(path) == "", "reached, and then it is only busy"
    assert unreachable(path) == "nobody listens at its socket"


def test_what_cannot_be_made_again_is_told_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Any] = [OSError("no room"), OSError("no room"), [Path("t")], []]

    def mend() -> list[Path]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return list(answer)

    async def scenario() -> None:
        caretaker = Caretaker(SimpleNamespace(mend=mend), {}, {})  # type: ignore[arg-type]
        for _ in range(4):
            await caretaker.mend()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    told = [record.getMessage().split(";")[0] for record in caplog.records]
    assert told == ["the folder of this run cannot be kept: no room", "made again: t"]
