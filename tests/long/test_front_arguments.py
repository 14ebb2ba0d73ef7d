"""Arguments of the API server alone: real servers give the same completions with all of them as
with none.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from argued import LENGTH, config_of, fit_of
from argument_cases import NEEDS_MORE, SAID
from tiny import make_model, prompts

from mirage.arguments.check import check_names
from mirage.arguments.table import FETCHED, FILES, FOLDER, FRONT, IMAGES, LOGS, TABLE
from mirage.serve.launch.launcher import command
from mirage.tools.demo.tokenizer import save_tokenizer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
READY_S = 240.0

SWITCHES = {
    name: True
    for name, rule in TABLE.items()
    if rule.words in (FRONT, LOGS) and name.startswith(("enable_", "return_", "trust_", "exclude_"))
}
MORE: dict[str, Any] = {
    "chat_template_content_format": "string",
    "tool_strict_level": "function",
    "fingerprint_mode": "hash",
    "uvicorn_log_level": "error",
    "log_level": "ERROR",
    "disable_fastapi_docs": True,
    "aggregate_engine_logging": True,
    "log_error_stack": True,
    "fail_on_environ_validation": True,
    "max_num_queued_reqs": 100,
}
"""Values of arguments, one each, that override those of `SWITCHES` and `SAID`."""


def all_of_the_front() -> dict[str, Any]:
    """All served arguments of the API server, with one value each."""
    kinds = (FRONT, LOGS, FOLDER, IMAGES, FETCHED, FILES)
    names = [name for name, rule in TABLE.items() if rule.words in kinds]
    said = {name: SAID[name][0] for name in names if name in SAID}
    needed = {key: v for name in names for key, v in NEEDS_MORE.get(name, {}).items()}
    return {"kv_cache_metrics": True, **needed, **SWITCHES, **said, **MORE}


class Unix(http.client.HTTPConnection):
    """HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def asked(path: Path, route: str, body: dict[str, Any] | None) -> tuple[int, Any]:
    """Status and answer of one request; a GET if there is no body."""
    connection = Unix(path)
    headers = {"Content-Type": "application/json"}
    sent = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", route, sent, headers)
    answer = connection.getresponse()
    read = answer.read()
    return answer.status, json.loads(read) if read else None


def served(model: Path, folder: Path, engine_args: dict[str, Any]) -> list[Any]:
    """Answers of a server with these arguments to three prompts and in a chat."""
    config = config_of(model, engine_args)
    uds = folder / "s"
    words = command(config, config.tenants[0], fit_of(model), uds, None)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, *words[1:]], stdout=log, stderr=log)
        try:
            _await(server, uds, folder / "log")
            return _said(uds)
        finally:
            server.terminate()
            server.wait(60)


def _await(server: subprocess.Popen[bytes], uds: Path, log: Path) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if asked(uds, "/health", None)[0] == 200:
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def _said(uds: Path) -> list[Any]:
    said: list[Any] = []
    limits = {"model": "t", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    for tokens in prompts(3, 40, 9):
        more = {"prompt": tokens, "logprobs": 3, "return_token_ids": True}
        status, answer = asked(uds, "/v1/completions", limits | more)
        assert status == 200, answer
        choice = answer["choices"][0]
        said.append([choice["token_ids"], choice["logprobs"]["token_logprobs"]])
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    status, answer = asked(uds, "/v1/chat/completions", limits | chat)
    assert status == 200 and answer["choices"][0]["message"], answer
    return said


def test_the_front_changes_no_text(tmp_path: Path) -> None:
    model = make_model("llama", tmp_path)
    save_tokenizer(model, LENGTH)
    given = all_of_the_front()
    assert len(given) > 50
    check_names(given)
    for name in ("bare", "full"):
        (tmp_path / name).mkdir()
    assert served(model, tmp_path / "full", given) == served(model, tmp_path / "bare", {})
