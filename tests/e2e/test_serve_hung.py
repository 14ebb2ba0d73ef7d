"""An engine hangs while it holds memory that another engine needs to start again."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from supervised import Served, serving, write_config

pytestmark = pytest.mark.e2e

BORROWS = {"FAKE_ENGINE": "borrows:a"}


def config(folder: Path) -> Path:
    """Configuration of two tenants with shares of 32 pages each; `a` may hold 43 by borrowing."""
    return write_config(folder, "a", "b", device={"memory": "4MiB"}, hang_s=8)


def pids(served: Served, name: str) -> dict[str, int]:
    status, body = served.request("POST", "/v1/completions", {"model": name, "prompt": "pids"})
    assert status == 200
    return dict(body)


def has_borrowed(served: Served) -> Any:
    held = served.request("GET", "/mirage/state")[1]["tenants"].get("a", {}).get("held_bytes", 0)
    return held == 43 * 65536


def test_it_is_named_and_then_ended_and_both_come_back(tmp_path: Path) -> None:
    """`a` has borrowed memory and no longer obeys, though it steps and gives signs of life, while
    `b` has to start again. The state names `a` as the reason; `a` is then ended, and both serve
    again.
    """
    with serving(config(tmp_path), environment=BORROWS) as served:
        served.drain()
        served.until("a has borrowed", lambda: has_borrowed(served))
        hung, other = pids(served, "a"), pids(served, "b")
        os.kill(hung["core"], signal.SIGWINCH)
        os.kill(other["core"], signal.SIGKILL)

        def reason() -> Any:
            return served.request("GET", "/health")[1].get("reasons", {}).get("b")

        words = "waits for memory that others hold: 0.7 MiB tenant 'a'"
        served.until("b waits", lambda: reason() == words)
        told = served.request("GET", "/mirage/state")[1]["engines"]["b"]
        assert (told["state"], told["reason"]) == ("starting", words)
        assert served.request("GET", "/health/b")[0] == 503
        waits = served.open("POST", "/v1/completions", {"model": "b", "prompt": "pids"})

        served.until(
            "both are ready", lambda: served.request("GET", "/health")[1]["status"] == "ok"
        )
        assert waits.getresponse().status == 200
        assert "reasons" not in served.request("GET", "/health")[1]
        assert pids(served, "a")["core"] != hung["core"]
        assert pids(served, "b")["core"] != other["core"]
        assert served.process.poll() is None
    lines = [line for line in served.log if line.startswith("mirage: ")]
    waits = [line for line in lines if "waits for memory" in line]
    assert waits[0].startswith(f"mirage: b: {words}, for ")
    assert (
        "mirage: a: its engine hangs (for 8 s it gave nothing back to 'b'): it is ended\n" in lines
    )
    assert any(line.startswith("mirage: a: engine hung (for 8 s it gave nothing") for line in lines)
