"""The status of a tenant in each of its states is true."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operated import Operated, content, operated, tenant

pytestmark = pytest.mark.e2e

HOUR_S = 3600.0
SPEC = {"share_percent": 40.0, "start": "on_request", "keep_alive_s": None, "stop_after_s": HOUR_S}


class Told:
    """Reads the status of tenant `a` in one state after another."""

    def __init__(self, site: Operated) -> None:
        self.site, self.since = site, 0.0

    def act(self, act: str) -> None:
        assert self.site.ask("POST", f"/tenants/a/{act}")[0] == 202

    def asks(self, prompt: str) -> Any:
        """Connection over which a request was sent; its answer has not been read."""
        return self.site.server.open("POST", "/v1/completions", {"model": "a", "prompt": prompt})

    def one(self) -> dict[str, Any]:
        return self.site.ask("GET", "/tenants/a")[1]

    def until(self, state: str, **expected: Any) -> dict[str, Any]:
        """Wait until the tenant is in this state with these facts, check the rest of its status,
        and return it.
        """
        facts = {"state": state, "running": 0, "waiting": 0, "yields_s": None} | expected
        self.site.until(lambda: facts.items() <= self.one().items())
        status, one, headers = self.site.ask("GET", "/tenants/a")
        every = self.site.ask("GET", "/tenants")[1]
        assert status == 200 and headers["ETag"] == f'"{every["revision"]}"'
        assert self.since < one["since"] <= time.time(), "it is another state than before"
        self.since = one["since"]
        assert one["spec"].items() >= SPEC.items() and one["device"] == "host:0"
        assert 0 < one["asleep_bytes"] < one["share_bytes"] < 4 << 20
        self._shown(one)
        return one

    def _shown(self, one: dict[str, Any]) -> None:
        shown = self.site.mirage("tenants", "show", "a").stdout
        rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
        assert rows["state"].startswith(f"{one['state']}, for ")
        assert (rows["weights"], rows["log"]) == (one["weights"], one["log"])
        assert rows["requests"] == f"{one['running']} running, {one['waiting']} waiting"
        assert rows["reason"] == (one["reason"] or "-") and rows["restarts"] == str(one["restarts"])
        assert "stop_after 3600 s" in rows["keys"] and "(40 %)" in rows["share"]
        assert {"name", "until", "device", "asleep", "ready"} <= rows.keys()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """File that must exist before an engine of tenant `a` starts."""
    return tmp_path / "gate"


@pytest.fixture
def told(tmp_path: Path, gate: Path) -> Iterator[Told]:
    config = content(tenants=[tenant("a", stop_after="1h"), tenant("b")])
    says = {"FAKE_ENGINE": f"obeys:a:{gate}", "FAKE_BACKOFF_S": "60"}
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short,
        operated(tmp_path / "s", Path(short), config, **says) as site,
    ):
        yield Told(site)


def test_of_a_tenant_that_comes_and_goes(told: Told, gate: Path) -> None:
    one = told.until("stopped", weights="disk", held_bytes=0, restarts=0, reason="")
    assert one["ready_s"] > 0 and not Path(one["log"]).exists()
    waits = told.asks("pids")
    one = told.until("starting", weights="disk", waiting=1)
    assert 0 < one["held_bytes"] <= 4 << 20 and one["ready_s"] > 0
    gate.touch()
    core = 0
    with waits.getresponse() as answer:
        core = int(answer.read().partition(b'"core": ')[2].rstrip(b"}"))

    runs = told.asks("silent")
    one = told.until("ready", weights="device", running=1, ready_s=0.0, reason="")
    assert one["asleep_bytes"] < one["held_bytes"] and Path(one["log"]).exists()
    told.act("sleep?drain_s=60")
    waits = told.asks("pids")
    one = told.until("draining", weights="device", running=1, waiting=1)
    assert one["asleep_bytes"] < one["held_bytes"] and one["ready_s"] > 0
    runs.close()
    assert waits.getresponse().status == 200

    told.until("ready", weights="device")
    told.act("sleep")
    told.site.until(lambda: told.one()["state"] == "sleeping")
    asleep = told.one()
    assert 0 < asleep.pop("yields_s") <= HOUR_S and asleep["ready_s"] > 0
    assert asleep["held_bytes"] == asleep["asleep_bytes"] and asleep["weights"] == "host"
    os.kill(core, signal.SIGSTOP)
    waits = told.asks("pids")
    one = told.until("waking", weights="host", waiting=1)
    assert one["held_bytes"] == one["asleep_bytes"] and one["ready_s"] > 0
    os.kill(core, signal.SIGCONT)
    assert waits.getresponse().status == 200
    told.act("stop")
    told.until("stopped", weights="disk", held_bytes=0, restarts=0)


def test_of_one_that_breaks(told: Told, gate: Path) -> None:
    gate.touch()
    told.act("wake")
    told.until("ready", weights="device")
    assert told.site.complete("a", "die")[0] >= 500
    one = told.until("down", weights="disk", held_bytes=0, restarts=0)
    assert "its engine" in one["reason"] and one["ready_s"] > 30
    told.act("wake")
    one = told.until("ready", weights="device", restarts=1)
    assert "its engine" in one["reason"], "of its last end"
