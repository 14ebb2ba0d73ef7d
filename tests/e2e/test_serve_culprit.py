"""A request that ends its engine is named, refused for a while, and costs no restart."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised import Served, read_all, serving, write_config

pytestmark = pytest.mark.e2e


def post(served: Served, prompt: str, model: str = "a", **more: Any) -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": prompt, **more})


def back(served: Served) -> None:
    served.until("a is back", lambda: served.engine_state("a") == "ready")


@pytest.mark.parametrize(
    ("prompt", "how"), [("die", "ended by SIGSEGV"), ("raise", "ended with ZeroDivisionError")]
)
def test_a_request_that_ends_its_engine_is_refused_and_other_ones_each_time_are_counted(
    tmp_path: Path, prompt: str, how: str
) -> None:
    with serving(write_config(tmp_path, "a", "b")) as served:
        for attempt in range(4):
            status, body = post(served, prompt, attempt=attempt)
            assert (status, body["error"]["code"]) == (502, "request_ended_engine")
            assert "its engine ended over this request" in body["error"]["message"]
            status, body = post(served, "pids", model="b")
            assert status == 200
            if attempt == 3:
                break
            back(served)
            status, body = post(served, prompt, attempt=attempt)
            assert (status, body["error"]["code"]) == (422, "request_ended_engine")
            assert "change it, or wait" in body["error"]["message"]
            assert post(served, "pids")[0] == 200
        served.until("a has failed", lambda: served.engine_state("a") == "failed")
        assert served.request("GET", "/mirage/state")[1]["engines"]["a"]["restarts"] == 3
        _, stderr = served.end(signal.SIGTERM)
    named = [line for line in stderr.splitlines() if f"a: engine core {how} over a request" in line]
    assert len(named) == 4
    size = len(json.dumps({"model": "a", "prompt": prompt, "attempt": 0}))
    assert f"(/v1/completions of 'a', {size} bytes, digest " in named[0]
    assert "(end 1 of 3)" in named[0] and "given up after 3 restarts" in named[3]
    assert f'"{prompt}"' not in stderr and f"'{prompt}'" not in stderr


def test_a_kill_from_outside_blames_no_request(tmp_path: Path) -> None:
    """An engine is killed with SIGKILL while one request runs, twice. The request is not blamed,
    because a health probe would be the only request each time.
    """
    with serving(write_config(tmp_path, "a")) as served:
        for _ in range(2):
            status, body = post(served, "kill")
            assert status == 502
            words = "its engine core was ended from outside (SIGKILL): send this request again"
            assert words in body["error"]["message"]
            back(served)
        _, stderr = served.end(signal.SIGTERM)
    line = "a: engine core was ended from outside (SIGKILL), and 1 requests broke off, starting "
    assert stderr.count(line) == 2


def test_a_killed_api_server_blames_no_request(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        server = post(served, "pids")[1]["server"]
        body = {"model": "a", "prompt": "hang", "stream": True}
        answer = served.open("POST", "/v1/completions", body).getresponse()
        assert answer.readline() == b"data: {}\n"
        os.kill(server, signal.SIGKILL)
        assert b"its API server was ended from outside (SIGKILL)" in read_all(answer)
        back(served)
        assert post(served, "pids")[0] == 200


def test_a_500_of_an_engine_that_lives_is_passed_on(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        assert post(served, "fail") == (500, {"error": {"message": "no"}})
        assert served.engine_state("a") == "ready"


def test_the_log_names_the_request_by_its_id(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        connection = served.open("GET", "/health")
        connection.getresponse().read()
        body = json.dumps({"model": "a", "prompt": "die"})
        connection.request("POST", "/v1/completions", body, {"X-Request-Id": "job-7"})
        assert connection.getresponse().status == 502
        connection.close()
        back(served)
        _, stderr = served.end(signal.SIGTERM)
    assert ", id 'job-7'" in stderr


def test_of_several_the_one_that_was_there_twice_is_named(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:

        def hang(**more: Any) -> Any:
            body = {"model": "a", "prompt": "hang", "stream": True, **more}
            answer = served.open("POST", "/v1/completions", body).getresponse()
            assert answer.readline() == b"data: {}\n"
            return answer

        hanging = hang()
        status, body = post(served, "die")
        assert status == 502, body
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
    assert "ended by SIGSEGV, perhaps over one of 2 requests (" in stderr
    assert "ended by SIGSEGV over a request, refused for 300 s (" in stderr


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
            "model 'a' is failed: given up after 3 restarts: engine core was ended from outside "
            "(SIGKILL)",
        )
