"""Real engines and `mirage serve` are killed while KV blocks go down to a disk that is kept.

No wrong text is ever answered, before or after. Nothing of a killed process is left.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from left_shared import shared_files
from supervised import Served, assert_gone, serving
from test_serve_tiers_real import configured, drawn, loaded, say

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

MIB = 1 << 20
SSD_BYTES = 24 * MIB
TIERS: dict[str, Any] = {"host": {"bytes": 6 * MIB}}
ASKING = 3
LEASE_S = 600.0
READY_S = 900.0
"""Most seconds until a server is ready on a machine that is busy with other work."""


class Asking:
    """Threads that send requests with known answers until stopped. A killed server or engine may
    fail to answer.
    """

    def __init__(self, served: Served, prompts: list[str], texts: list[str], seed: int) -> None:
        self._served, self._prompts, self._texts = served, prompts, texts
        self._stopped = threading.Event()
        self.right, self.wrong = 0, list[str]()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(seed * ASKING + n),))
            for n in range(ASKING)
        ]

    def _ask(self, rng: random.Random) -> None:
        while not self._stopped.is_set():
            choice = rng.randrange(len(self._prompts))
            body = {
                "model": rng.choice("ab"),
                "prompt": self._prompts[choice],
                "max_tokens": 8,
                "temperature": 0,
            }
            try:
                status, answer = self._served.request("POST", "/v1/completions", body)
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.05)  # it is being killed, or is gone
                continue
            if status != 200:
                time.sleep(0.05)
            elif answer["choices"][0]["text"] == self._texts[choice]:
                self.right += 1
            else:
                self.wrong.append(f"{answer['choices'][0]} for {self._prompts[choice]!r}")

    def more(self, answers: int = 30) -> None:
        """Wait until `answers` more answers were right."""
        before, until = self.right, time.monotonic() + READY_S
        while self.right < before + answers:
            assert time.monotonic() < until and not self.wrong, self.wrong
            time.sleep(0.1)

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def ssd(served: Served) -> dict[str, Any]:
    return dict(served.request("GET", "/mirage/state")[1]["ssd"])


def busy(served: Served, rng: random.Random) -> None:
    """Wait for a random moment at which blocks are being written to the disk."""
    more = ssd(served)["stored"] + rng.randrange(10, 60)
    served.until("blocks go down", lambda: ssd(served)["stored"] >= more, READY_S)


@contextlib.contextmanager
def started(config: Path, lease_s: float = 0) -> Iterator[Served]:
    with serving(config, fake=False, ready_timeout_s=READY_S, lease_s=lease_s) as served:
        served.drain()
        yield served


def nothing_is_left(served: Served, disk: Path) -> None:
    """Kill the server alone, and check that no process, file or shared memory of it is left."""
    folder, family = served.run_folder(), served.family()
    shared = shared_files(family)
    served.process.kill()
    served.process.wait()
    assert_gone(family, timeout_s=60)
    assert folder is not None and not folder.exists()
    assert not [path for path in shared if path.exists()]
    assert sum(path.stat().st_blocks * 512 for path in disk.iterdir()) <= SSD_BYTES + MIB


def test_engines_and_server_are_killed_at_random(tmp_path: Path) -> None:
    disk, rng, prompts = tmp_path / "ssd", random.Random(3), drawn(60)
    kept = {"directory": str(disk), "bytes": SSD_BYTES, "keep": True}
    config = configured(tmp_path, TIERS | {"ssd": kept})
    texts: list[str] = []
    for life in range(2):
        with started(config) as served:
            assert bool(life) == (ssd(served)["found"] > 0)
            if not life:  # with nothing stored all of them are computed
                for prompt in prompts:
                    ask = {"model": "a", "prompt": prompt, "max_tokens": 8, "temperature": 0}
                    status, answer = served.request("POST", "/v1/completions", ask)
                    assert status == 200, answer
                    texts.append(answer["choices"][0]["text"])
            with Asking(served, prompts, texts, seed=life) as asking:
                busy(served, rng)
                if not life:
                    engine_is_killed(served)
                    busy(served, rng)
                nothing_is_left(served, disk)
            assert asking.wrong == [] and asking.right > 0
    with started(config) as served:
        assert ssd(served)["found"] > 0
        for prompt, text in zip(prompts, texts, strict=True):
            ask = {"model": "b", "prompt": prompt, "max_tokens": 8, "temperature": 0}
            assert served.request("POST", "/v1/completions", ask)[1]["choices"][0]["text"] == text
        assert ssd(served)["loaded"] > 0


def engine_is_killed(served: Served) -> None:
    """Kill an engine, and wait until it serves again."""

    def engine() -> dict[str, Any]:
        return dict(served.request("GET", "/mirage/state")[1]["engines"]["a"])

    before = engine()["restarts"]
    served.engine_core("a").kill()
    served.until(
        "the engine is back",
        lambda: engine()["restarts"] > before and engine()["state"] == "ready",
        READY_S,
    )


def test_engines_go_on_without_the_pool_of_a_killed_server(tmp_path: Path) -> None:
    """The supervisor, and the pool with it, is killed. Engines serve on, also after the next
    supervisor has adopted them, and release the memory of the first pool; a new engine uses the
    second.
    """
    config, prompts = configured(tmp_path, TIERS), drawn(60)
    with started(config, LEASE_S) as first:
        texts = [say(first, "a", prompt) for prompt in prompts]
        with Asking(first, prompts, texts, seed=7) as asking:
            first.until("blocks come up", lambda: loaded(first, "a") > 0 and loaded(first, "b") > 0)
            family = first.family()
            cores = [first.engine_core(name) for name in "ab"]
            first.process.kill()
            first.process.wait()
            asking.more()
            with started(config, LEASE_S) as second:
                asking.more()
                engines = second.request("GET", "/mirage/state")[1]["engines"]
                assert all(one["adopted"] for one in engines.values()), "".join(second.log)
                second.until("no pool is mapped", lambda: not any(map(has_pool, cores)), 60)
                cores[0].kill()
                second.until("another engine has the pool", lambda: has_other_pool(second, cores))
                asking.more()
                family |= second.family()
                assert second.end(signal.SIGTERM)[0] == 0
    assert asking.wrong == []
    assert_gone({process for process in family if process.is_running()})


def has_pool(core: psutil.Process) -> bool:
    return "memfd:mirage-tier" in Path(f"/proc/{core.pid}/maps").read_text()


def has_other_pool(served: Served, cores: list[psutil.Process]) -> bool:
    with contextlib.suppress(AssertionError, ValueError, OSError, psutil.Error):  # it starts
        core = served.engine_core("a")
        return core not in cores and has_pool(core)
    return False
