"""A tenant that cannot start is failed, says why, and ends no other; later it may start."""

import tempfile
from pathlib import Path

import pytest
import yaml
from operated import content, operated
from supervised import DEADLINE_S, Served, serving, write_config

pytestmark = pytest.mark.e2e

REASON = "the engine ended with exit code 3 before it was ready: ValueError: the moon is too near"


def ask(served: Served, model: str):  # type: ignore[no-untyped-def]
    return served.request("POST", "/v1/completions", {"model": model, "prompt": "pids"})


def test_one_that_cannot_start_is_failed_and_the_others_serve(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b", "c"), environment={"FAKE_ENGINE": "dies:b"}) as s:
        assert ask(s, "a")[0] == ask(s, "c")[0] == 200
        status, body = ask(s, "b")
        assert (status, body["error"]["type"]) == (503, "server_error")
        assert body["error"]["message"] == f"model 'b' is failed: {REASON}"
        answer = s.open("POST", "/v1/completions", {"model": "b", "prompt": "x"}).getresponse()
        assert 300 < int(answer.headers["Retry-After"]) <= 640, "when it has been tried again"
        status, health = s.request("GET", "/health")
        assert (status, health["status"]) == (200, "degraded")
        assert health["tenants"] == {"a": "ready", "b": "failed", "c": "ready"}
        assert health["reasons"] == {"b": REASON}
        engines = s.request("GET", "/mirage/state")[1]["engines"]
        assert engines["b"] == {"state": "failed", "restarts": 0, "reason": REASON, "moves": []}
        assert "reason" not in engines["a"]
        status, stderr = s.end(15)
    assert status == 0
    lines = stderr.splitlines()
    assert f"mirage: tenant 'b': {REASON} (--log-dir keeps logs)" in lines
    assert "mirage: b: its memory is lent to the other tenants; the next start is in 600 s" in lines
    assert any("2 of 3 tenants" in line for line in lines)


def test_one_that_check_refuses_is_failed_at_once_and_the_others_serve(tmp_path: Path) -> None:
    """A tenant's model folder does not exist. The tenant is failed with the reason and is not tried
    again, and the others serve.
    """
    path = write_config(tmp_path, "a", "b", "c")
    content = yaml.safe_load(path.read_text())
    content["tenants"][1]["model"] = "nowhere"
    path.write_text(yaml.safe_dump(content))
    with serving(path) as s:
        s.drain()
        assert ask(s, "a")[0] == ask(s, "c")[0] == 200
        status, body = ask(s, "b")
        assert status == 503
        assert body["error"]["message"].startswith("model 'b' is failed: no model folder at ")
        answer = s.open("POST", "/v1/completions", {"model": "b", "prompt": "x"}).getresponse()
        assert "Retry-After" not in answer.headers, "it is not tried again"
        health = s.request("GET", "/health")[1]
        assert health["tenants"] == {"a": "ready", "b": "failed", "c": "ready"}
        assert health["reasons"]["b"].startswith("no model folder at ")
        assert s.request("GET", "/v1/models")[0] == 200
        assert b"mirage_" in s.open("GET", "/metrics").getresponse().read()
        assert s.process.poll() is None
    assert any("tenant 'b' is not served: no model folder at" in line for line in s.log)
    assert any("2 of 3 tenants" in line for line in s.log)


def test_if_none_can_start_the_command_fails_and_names_each(tmp_path: Path) -> None:
    config = write_config(tmp_path, "a", "b")
    with serving(config, environment={"FAKE_ENGINE": "dies:all"}, ready_timeout_s=None) as s:
        _, stderr = s.process.communicate(timeout=DEADLINE_S)
    assert s.process.returncode == 1
    (line,) = (line for line in stderr.splitlines() if line.startswith("mirage: error: "))
    assert line.startswith(f"mirage: error: no tenant could start: tenant 'a': {REASON} ")
    assert f"; tenant 'b': {REASON} " in line
    assert not s.ready_file.exists()


def test_one_that_failed_is_tried_again_after_a_rest(tmp_path: Path) -> None:
    remedy = tmp_path / "remedy"
    environment = {"FAKE_ENGINE": f"after:b:{remedy}", "FAKE_REST_S": "0.1"}
    with serving(write_config(tmp_path, "a", "b"), environment=environment) as s:
        s.drain()
        s.until("it was tried in vain", lambda: sum("is lent to" in line for line in s.log) > 1)
        assert s.engine_state("a") == "ready"
        remedy.touch()
        s.until("b serves", lambda: ask(s, "b")[0] == 200)
        assert s.request("GET", "/health")[1] == {
            "status": "ok",
            "tenants": {"a": "ready", "b": "ready"},
            "device": {"status": "ok"},
        }


@pytest.mark.parametrize("act", ["wake", "restart"])
def test_an_operator_has_it_tried_again_without_the_rest(tmp_path: Path, act: str) -> None:
    remedy = tmp_path / "remedy"
    told, engines = content("a", "b"), f"after:b:{remedy}"
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short,
        operated(tmp_path / "s", Path(short), told, FAKE_ENGINE=engines) as s,
    ):
        assert s.ask("POST", "/tenants/b/wake")[0] == 202
        s.until(lambda: s.state("b") == "failed")
        told = s.ask("GET", "/tenants/b")[1]
        assert "the moon is too near" in told["reason"] and told["ready_s"] > 300
        assert (told["weights"], told["held_bytes"], told["waiting"]) == ("disk", 0, 0)
        in_vain = s.mirage("tenants", act, "b", "--wait")
        assert "b is failed, and starts as there is room, without a rest" in in_vain.stdout
        assert in_vain.returncode == 1 and "b has failed: " in in_vain.stderr
        remedy.touch()
        done = s.mirage("tenants", act, "b", "--wait")
        assert done.returncode == 0 and "b is ready" in done.stdout, done.stderr
