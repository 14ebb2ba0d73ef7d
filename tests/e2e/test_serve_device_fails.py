"""A failed device is reported in one line; its tenants wait, and no engine is started there."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from supervised import DEADLINE_S, Served, serving, write_config

pytestmark = pytest.mark.e2e

ANSWERS = """
import pathlib, sys
if pathlib.Path({file!r}).exists():
    print("cuInit(0): CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected")
    sys.exit(1)
"""
REST_S = "0.5"


def post(served: Served, prompt: str, model: str = "a", **more: Any) -> tuple[int, Any]:
    return served.request("POST", "/v1/completions", {"model": model, "prompt": prompt, **more})


def states(served: Served) -> set[str]:
    return {served.engine_state(name) for name in ("a", "b")}


def device(served: Served) -> Any:
    return served.request("GET", "/health")[1]["device"]


def test_an_ecc_error_ends_all_engines_and_none_is_started_while_it_lasts(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    fakes = {"FAKE_DEVICE": ANSWERS.format(file=str(gone)), "FAKE_REST_S": REST_S}
    with serving(write_config(tmp_path, "a", "b"), environment=fakes) as served:
        assert device(served) == {"status": "ok"}
        gone.touch()
        status, body = post(served, "ecc")
        assert status == 502 and "CUDA_ERROR_ECC_UNCORRECTABLE" in body["error"]["message"]
        assert body["error"]["code"] != "request_ended_engine", "no request is to blame"
        served.until("both have failed", lambda: states(served) == {"failed"})
        words = (
            "the device has failed: CUDA_ERROR_ECC_UNCORRECTABLE, uncorrectable ECC error "
            "encountered (tenant 'a')"
        )
        assert device(served) == {"status": "failed", "reason": words}
        state = served.request("GET", "/mirage/state")[1]
        assert state["device"] == {"status": "failed", "reason": words}
        assert {one["reason"] for one in state["engines"].values()} == {words}
        assert post(served, "pids", "b")[0] == 503
        served.drain()
        asked = "the device does not answer (cuInit(0): CUDA_ERROR_NO_DEVICE"
        served.until("it was asked", lambda: any(asked in line for line in served.log))
        assert states(served) == {"failed"}
        assert {one["restarts"] for one in state["engines"].values()} == {0}
        gone.unlink()
        served.until("it is well", lambda: states(served) == {"ready"})
        assert device(served) == {"status": "ok"}
        assert post(served, "pids", "b")[0] == 200
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(DEADLINE_S)
    lines = [line for line in served.log if words in line]
    assert len(lines) == 1 and f"it is asked again in {REST_S} s" in lines[0]
    assert sum("the device answers again: engines start" in line for line in served.log) == 1


def test_an_illegal_address_ends_one_engine(tmp_path: Path) -> None:
    fakes = {"FAKE_DEVICE": ""}
    with serving(write_config(tmp_path, "a", "b"), environment=fakes) as served:
        pids = post(served, "pids", "b")
        status, body = post(served, "illegal address")
        assert (status, body["error"]["code"]) == (502, "request_ended_engine")
        served.until("a is back", lambda: states(served) == {"ready"})
        assert post(served, "pids", "b") == pids and device(served) == {"status": "ok"}
        _, stderr = served.end(signal.SIGTERM)
    ended = "a: engine core ended with AcceleratorError (CUDA_ERROR_ILLEGAL_ADDRESS) over a request"
    assert stderr.count(ended) == 1 and "has failed" not in stderr


def test_an_illegal_address_on_a_device_that_is_gone_is_no_requests_fault(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with serving(
        write_config(tmp_path, "a", "b"),
        environment={"FAKE_DEVICE": ANSWERS.format(file=str(gone))},
    ) as served:
        gone.touch()
        status, body = post(served, "illegal address")
        assert status == 502 and body["error"]["code"] != "request_ended_engine"
        served.until("both have failed", lambda: states(served) == {"failed"})
        assert "CUDA_ERROR_NO_DEVICE" in device(served)["reason"]
        _, stderr = served.end(signal.SIGTERM)
    assert stderr.count("the device has failed") == 1
    assert "no model is served, it is asked again in 600 s" in stderr
    assert "starting again" not in stderr


def test_an_ecc_error_of_one_start_ends_them_all_with_one_line(tmp_path: Path) -> None:
    fakes = {
        "FAKE_ENGINE": "dies:a",
        "FAKE_DEVICE": "",
        "FAKE_ERROR": "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    }
    config = write_config(tmp_path, "a", "b")
    with serving(config, environment=fakes, ready_timeout_s=None) as served:
        served.drain()
        words = "the device has failed: CUDA_ERROR_ECC_UNCORRECTABLE"
        deadline = time.monotonic() + DEADLINE_S
        while not any(words in line for line in served.log) and time.monotonic() < deadline:
            time.sleep(0.05)
        if served.process.poll() is None and served.ready_file.exists():
            served.wait_ready(DEADLINE_S)  # the other one was faster
            served.until("both have failed", lambda: states(served) == {"failed"})
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(DEADLINE_S)
    assert any(words in line for line in served.log)
    assert not any("starting again" in line for line in served.log)


def test_a_device_that_is_gone_at_start_ends_the_command_with_one_line(tmp_path: Path) -> None:
    fakes = {
        "FAKE_ENGINE": "dies:all",
        "FAKE_DEVICE": "import sys; print('no NVIDIA driver'); sys.exit(1)",
    }
    config = write_config(tmp_path, "a")
    with serving(config, environment=fakes, ready_timeout_s=None) as served:
        _, stderr = served.process.communicate(timeout=DEADLINE_S)
    assert served.process.returncode == 1
    assert "mirage: error: the device has failed: no NVIDIA driver" in stderr
