"""A tenant whose model cannot compute a first step is failed with the reason; others serve."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

FAILED = "the first step of the model failed: "
OTHERWISE = "; try another dtype, or other engine_args"
RAISED = f"{FAILED}RuntimeError: expected BFloat16{OTHERWISE}"


def ask(served: Served, model: str) -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": "pids"})


@pytest.mark.parametrize(
    ("how", "options", "reason"),
    [
        ("raises", (), RAISED),
        ("crashes", (), f"{FAILED}its engine core ended by SIGSEGV{OTHERWISE}"),
        (
            "stands",
            (),
            "while it started, its engine hung (no step for 5 s with 1 requests) and was ended",
        ),
        (
            "late",
            ("--startup-timeout", "8"),
            "its first step was not computed after 8 s: raise --startup-timeout",
        ),
        (
            "refuses",
            (),
            "the engine ended with exit code 2 before it was ready: "
            "ValueError: no such chat template",
        ),
    ],
)
def test_one_that_does_not_compute_is_failed_and_the_others_serve(
    tmp_path: Path, how: str, options: tuple[str, ...], reason: str
) -> None:
    config = write_config(tmp_path, "a", "b", "c", hang_s=5 if how == "stands" else 30)
    with serving(config, *options, environment={"FAKE_ENGINE": f"{how}:b"}) as s:
        assert ask(s, "a")[0] == ask(s, "c")[0] == 200
        status, body = ask(s, "b")
        assert (status, body["error"]["message"]) == (503, f"model 'b' is failed: {reason}")
        health = s.request("GET", "/health")[1]
        assert health["tenants"] == {"a": "ready", "b": "failed", "c": "ready"}
        assert health["reasons"] == {"b": reason}
        _, stderr = s.end(15)
    lines = stderr.splitlines()
    assert f"mirage: tenant 'b': {reason} (--log-dir keeps logs)" in lines
    assert not any(line.startswith("mirage: b: ready") for line in lines)


def test_after_each_restart_a_first_step_is_computed_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    environment = {"FAKE_ENGINE": f"raises:b:{broken}", "FAKE_REST_S": "0.2"}
    with serving(write_config(tmp_path, "a", "b"), environment=environment) as s:
        s.drain()
        broken.touch()
        os.kill(ask(s, "b")[1]["core"], signal.SIGKILL)

        def reason() -> Any:
            return s.request("GET", "/health")[1].get("reasons", {}).get("b")

        given_up = f"given up after 3 restarts: {RAISED}"
        s.until("it is given up", lambda: reason() == given_up)
        assert ask(s, "a")[0] == 200
        broken.unlink()
        s.until("b serves", lambda: ask(s, "b")[0] == 200)
        assert "reasons" not in s.request("GET", "/health")[1]
