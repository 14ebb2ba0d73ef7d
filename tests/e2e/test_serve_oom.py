"""A memory cgroup that is too small: for the configuration, or for an engine, which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervised import serving, write_config

pytestmark = pytest.mark.e2e

GROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 128 * 2**20


@pytest.fixture
def small() -> Iterator[Path]:
    """File of a cgroup limited to `LIMIT_BYTES`; a process whose id is written there joins the
    cgroup.
    """
    old = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if old else GROUPS) / f"mirage-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if old else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


def test_a_device_that_it_does_not_hold_is_refused(tmp_path: Path, small: Path) -> None:
    config = write_config(tmp_path, "a", device={"memory": "129MiB"})
    inside = f"echo $$ > {small} && exec {sys.executable} -m mirage check {config}"
    checked = subprocess.run(["sh", "-c", inside], capture_output=True, text=True, check=False)
    assert checked.returncode == 2, checked.stderr
    (line,) = checked.stderr.splitlines()
    assert line.startswith("mirage: error: device.memory is 129.0 MiB, the control group's ")
    assert line.endswith(" allows 128.0 MiB: lower it") and small.parent.name in line


def test_it_is_named_and_blames_no_request(tmp_path: Path, small: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        body = {"model": "a", "prompt": "pids"}
        core = served.request("POST", "/v1/completions", body)[1]["core"]
        small.write_text(str(core))
        time.sleep(3.0)  # the server looks for it there once a second
        status, answer = served.request("POST", "/v1/completions", body | {"prompt": "eat"})
        assert status == 502
        words = "its engine core was killed by the kernel's OOM killer (SIGKILL): memory ran out"
        assert words in answer["error"]["message"]
        served.until("a is back", lambda: served.engine_state("a") == "ready")
        assert served.request("POST", "/v1/completions", body)[0] == 200
        _, stderr = served.end(signal.SIGTERM)
    assert "a: engine core was killed by the kernel's OOM killer (SIGKILL)" in stderr
    assert "(end 1 of 3)" in stderr
