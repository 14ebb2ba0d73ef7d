"""Lines of a server's log as JSON, in files that are rotated; and secrets that no line has."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operated import Operated, around, content
from supervised import serving, write_config
from test_serve_keys import ask, new_key

from mirage.config import ConfigError
from mirage.serve.logs.logs import FIELDS, JsonLine, LogFormat, LogPlan, ReopenedFile

pytestmark = pytest.mark.e2e

SECRET = "a prompt that is nobody's business"
PROGRAM = """
import sys
from pathlib import Path
from mirage.serve.logs.logs import LogFormat, LogPlan, log_by
from mirage.serve.logs.progress import say
import logging
log_by(LogPlan(LogFormat(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None), "INFO")
say("said")
logging.getLogger("mirage.x").info("told %d", 1)
logging.getLogger("mirage.x").debug("hidden")
"""
FULL = """
import logging, resource, sys
from pathlib import Path
from mirage.serve.logs.logs import JsonLine, ReopenedFile
log, file = logging.Logger("x"), Path(sys.argv[1])
log.addHandler(ReopenedFile(file))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for _ in range(20):
    log.info("x" * 100)
file.rename(f"{file}.1")
for number in range(3):
    log.info("after %d", number)
"""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    made, handler = logging.Logger("x"), ReopenedFile(tmp_path / "log")
    handler.setFormatter(JsonLine())
    made.addHandler(handler)
    yield made
    handler.close()


def test_a_line_is_one_object_with_its_fields(tmp_path: Path, log: logging.Logger) -> None:
    log.info("two\nlines of %s", "ü", extra={FIELDS: {"tenant": "a", "seconds": 0.5}})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    first, second = lines(tmp_path / "log")
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "x",
        "message": "two\nlines of ü",
        "tenant": "a",
        "seconds": 0.5,
    }
    assert second["level"] == "error" and "ValueError: no" in second["error"]


def test_a_file_that_was_moved_is_made_anew(tmp_path: Path, log: logging.Logger) -> None:
    file, moved = tmp_path / "log", tmp_path / "log.1"
    log.info("before")
    file.rename(moved)
    log.info("after")
    assert [one["message"] for one in lines(moved)] == ["before"]
    assert [one["message"] for one in lines(file)] == ["after"]


def test_a_folder_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log, handler = logging.Logger("x"), ReopenedFile(folder / "log")
    handler.setFormatter(JsonLine())
    log.addHandler(handler)
    log.info("one")
    (folder / "log").unlink()
    folder.rmdir()
    log.info("lost")
    log.info("lost as well")
    folder.mkdir()
    log.info("two")
    assert [one["message"] for one in lines(folder / "log")] == ["two"]
    handler.close()


def test_a_file_that_takes_no_more_is_left_once_it_is_moved(tmp_path: Path) -> None:
    file = tmp_path / "log"
    subprocess.run([sys.executable, "-c", FULL, file], check=True)
    assert file.read_text().splitlines()[-1] == "after 2"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--access-log \S+/none/x: No such file"):
        LogPlan(access=tmp_path / "none" / "x").check()
    LogPlan(file=tmp_path / "x").check()


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("to_file", [True, False])
def test_lines_of_both_kinds_go_to_one_place(tmp_path: Path, form: str, to_file: bool) -> None:
    file = tmp_path / "log"
    words = [form, str(file) if to_file else ""]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    text = file.read_text() if to_file else done.stderr
    assert (done.stderr == "") is to_file and done.stdout == ""
    said, told = text.splitlines()
    if form == LogFormat.JSON:
        assert [json.loads(one)["message"] for one in (said, told)] == ["said", "told 1"]
    else:
        assert said.endswith("mirage.said said" if to_file else "mirage: said")
        assert told.endswith(" INFO mirage.x told 1")


def test_a_server_logs_to_files_that_are_moved(tmp_path: Path, short: Path) -> None:
    config = write_config(tmp_path, "a")
    config.write_text(yaml.safe_dump(content("a", "b")))
    keys, log, access = (tmp_path / name for name in ("keys.yaml", "log", "access"))
    token = new_key(short, "ci", "--keys", keys, "--models", "a")
    options = ["--keys", keys, "--log-format", "json", "--log-file", log, "--access-log", access]
    body = {"model": "a", "prompt": SECRET}
    with serving(config, *map(str, options), environment=around(short)) as served:
        served.drain()
        site = Operated(served, short)
        assert ask(served, f"/v1/completions?api={token}", token, body)[0] == 200
        assert ask(served, "/v1/completions", f"{token}x", body)[0] == 401
        assert ask(served, f"/v1/models/{token}", token)[0] == 404
        assert ask(served, f"/nowhere/{token}", token)[0] == 404
        site.until(lambda: len(lines(access)) == 4)
        first, refused, model, nowhere = lines(access)
        assert first["id"] and first["bytes"] > 0 and first["seconds"] >= 0
        wanted = {"method": "POST", "route": "/v1/completions", "status": 200, "key": "ci"}
        wanted |= {"tenant": "a", "model": "a", "peer": "127.0.0.1"}
        assert wanted.items() <= first.items()
        assert (refused["status"], refused["key"], refused["tenant"]) == (401, "", "")
        assert (model["route"], model["status"]) == ("/v1/models/{model}", 404)
        assert (nowhere["route"], nowhere["status"]) == ("", 404)

        for file in (log, access):
            file.rename(file.with_name(f"{file.name}.1"))
        assert ask(served, "/v1/completions", token, body)[0] == 200
        served.process.send_signal(signal.SIGHUP)  # which is said
        site.until(lambda: access.exists() and log.exists())
        site.until(lambda: any("SIGHUP" in one.get("message", "") for one in lines(log)))
        assert len(lines(access)) == 1
        assert served.end(signal.SIGTERM)[0] == 0
        told = "".join(served.log)
    before, after = lines(tmp_path / "log.1"), lines(log)
    assert any(one["message"].startswith("ready at ") for one in before)
    assert {"level", "logger", "message", "time"} <= set.intersection(*map(set, before + after))
    assert told == "", "nothing is said on standard error as well"
    files = (log, access, tmp_path / "log.1", tmp_path / "access.1")
    for file in files:
        assert SECRET not in file.read_text() and token not in file.read_text()


def test_a_request_whose_client_leaves_has_a_line(tmp_path: Path, short: Path) -> None:
    config, access = write_config(tmp_path, "a"), tmp_path / "access"
    with serving(config, "--access-log", str(access), environment=around(short)) as served:
        served.drain()
        body = {"model": "a", "prompt": "wait", "stream": True}
        connection = served.open("POST", "/v1/completions", body)
        connection.sock.close()
        connection.close()
        served.until("it is told", lambda: access.exists() and len(lines(access)))
        (one,) = lines(access)
        assert (one["status"], one["tenant"], one["model"]) == (499, "a", "a")
