"""A request that ends its engine is named, refused for a while, and costs no restart."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e


def post(served: Served, prompt: str, model: str = "a", **more: Any) -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": prompt, **more})


def back(served: Served) -> None:
    served.until("a is back", lambda: served.engine_state("a") == "ready")


def test_more_crashes_by_requests_than_the_limit_do_not_end_a_tenant(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        for attempt in range(5):
            status, body = post(served, "die", attempt=attempt)
            assert (status, body["error"]["code"]) == (502, "request_ended_engine")
            assert "its engine ended over this request" in body["error"]["message"]
            status, body = post(served, "pids", model="b")
            assert status == 200
            back(served)
            status, body = post(served, "die", attempt=attempt)
            assert (status, body["error"]["code"]) == (422, "request_ended_engine")
            assert "change it, or wait" in body["error"]["message"]
        assert post(served, "pids")[0] == 200
        assert served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"] == 5
        _, stderr = served.end(signal.SIGTERM)
    named = [line for line in stderr.splitlines() if "a: ended over a request" in line]
    assert len(named) == 5
    size = len(json.dumps({"model": "a", "prompt": "die", "attempt": 0}))
    assert f"(/v1/completions of 'a', {size} bytes, fingerprint " in named[0]
    assert "not counted" in named[0]
    assert '"die"' not in stderr and "'die'" not in stderr


def test_the_log_names_the_request_by_its_id(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        connection = served.open("GET", "/health")
        connection.getresponse().read()
        body = json.dumps({"model": "a", "prompt": "die"})
        connection.request("POST", "/v1/completions", body, {"X-Request-Id": "job 7"})
        assert connection.getresponse().status == 502
        connection.close()
        back(served)
        _, stderr = served.end(signal.SIGTERM)
    assert ", id 'job 7'" in stderr


def test_of_several_the_one_that_was_there_twice_is_named(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:

        def hang(**more: Any) -> Any:
            body = {"model": "a", "prompt": "hang", "stream": True, **more}
            answer = served.open("POST", "/v1/completions", body).getresponse()
            assert answer.readline() == b"data: {}\n"
            return answer

        hanging = hang()
        status, body = post(served, "die")
        assert status == 502
        assert "over this request, or over one of 1 others" in body["error"]["message"]
        assert b"or over one of 1 others" in read_all(hanging)
        back(served)
        hanging = hang()
        status, body = post(served, "die")
        assert status == 503
        assert "this request or another one that runs now" in body["error"]["message"]
        hanging.close()
        served.until("the other one is gone", lambda: post(served, "die")[0] != 503)
        back(served)
        assert post(served, "die")[0] == 422
        hanging = hang()  # innocent, as is known now
        hanging.close()
        _, stderr = served.end(signal.SIGTERM)
    assert "ended over one of 2 requests (" in stderr
    assert "ended over a request, refused for 300 s (" in stderr


def test_an_idle_engine_that_ends_is_counted(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        for _ in range(3):
            os.kill(post(served, "pids")[1]["core"], signal.SIGKILL)
            served.until("it is noticed", lambda: served.engine_state("a") != "ready")
            back(served)
        os.kill(post(served, "pids")[1]["core"], signal.SIGKILL)
        served.until("a is given up", lambda: served.engine_state("a") == "failed")
        status, body = post(served, "pids")
        assert (status, body["error"]["message"]) == (
            503,
            "model 'a' is failed: given up after 3 restarts",
        )


def read_all(answer: Any) -> bytes:
    """All that comes of an answer that breaks off."""
    read = b""
    try:
        while chunk := answer.read1():
            read += chunk
    except OSError:
        pass
    except Exception as error:
        assert type(error).__name__ == "IncompleteRead"
    return read
