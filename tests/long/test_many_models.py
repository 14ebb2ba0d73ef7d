"""Eight models on a device for two or three, by the clock: requests, operators, kills and freezes.

Operators also remove models, and have them again by applying the file.

`MIRAGE_TEST_MINUTES` shortens the hour, `MIRAGE_TEST_SEED` repeats its draws. Every request is
answered: with the tokens that the model computes alone, or with an error that says who has failed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from mirage.errors import CommandFailed
from mirage.serve.admin.address import listening
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.tools.demo.families import FAMILIES, Shape
from mirage.tools.demo.models import circuit_of, make_model
from tests.e2e.supervised import Served, assert_gone, serving
from tests.e2e.test_serve_roster_real import held_bytes, held_throughout

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * 3600)]

MINUTES = float(os.environ.get("MIRAGE_TEST_MINUTES", "60"))
NAMES = tuple("abcdefgh")
DEVICE = 56 << 20
CLIENTS = 6
ROUND_S = 120.0
"""Seconds of load between two quiet points."""
HARM_S = 20.0
"""Seconds between two kills, freezes or acts, on average."""
HANG_S = 15
ANSWER_S = 600.0
FAILED = frozenset({502, 503})
"""Answers while an engine that was killed or has frozen comes back."""


def test_every_request_is_answered_for_an_hour(tmp_path: Path) -> None:
    seed = int(os.environ.get("MIRAGE_TEST_SEED") or time.time())
    print(f"seed {seed}, {MINUTES:g} minutes")
    paths = _models(tmp_path)
    config = _config(tmp_path, paths)
    with serving(config, fake=False, ready_timeout_s=900) as served:
        served.patience_s = ANSWER_S
        served.drain()
        scene = Scene(served, config, paths, random.Random(seed))
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            scene.under_load(min(ROUND_S, max(10.0, end - time.monotonic())))
            scene.at_rest()
        family = served.family()
        assert served.end(signal.SIGTERM)[0] == 0
        assert_gone(family)
    print(f"answers {dict(scene.answers)}, acts {dict(scene.acts)}, most held {scene.most_held}")
    states = Counter(re.findall(r": (asleep after|awake in|stopped)", "\n".join(served.log)))
    print(f"as the server says: {dict(states)}")
    assert scene.wrong == []
    assert scene.answers[200] > 10 * MINUTES
    assert 0 < scene.most_held <= DEVICE
    assert min(states[each] for each in ("asleep after", "awake in", "stopped")) > 0


def _models(folder: Path) -> dict[str, Path]:
    """Models of three families; those of one family have different seeds."""
    shapes = (Shape(FAMILIES[n % 3], layers=4, seed=n) for n in range(len(NAMES)))
    return {name: make_model(folder / name, each) for name, each in zip(NAMES, shapes, strict=True)}


def _config(folder: Path, paths: dict[str, Path]) -> Path:
    tenants: list[dict[str, Any]] = [
        {"name": name, "model": str(path), "max_model_len": 320, "max_wait_s": ANSWER_S}
        | {"share": "auto", "start": "on_request", "keep_alive": "20s", "stop_after": "60s"}
        for name, path in paths.items()
    ]
    content = {
        "device": {"memory": f"{DEVICE >> 20}MiB"},
        "dtype": "float32",
        "hang_s": HANG_S,
        "roster": {"worth": 0.5, "busy_s": 1, "busy_worth": 0, "patience_s": 0.5, "drain_s": 1},
        "tiers": {"host": {"bytes": "32MiB"}},
        "tenants": tenants,
    }
    (path := folder / "config.yaml").write_text(yaml.safe_dump(content))
    return path


class Scene:
    """Clients, an operator and a killer of processes at one server, and what each has seen."""

    def __init__(
        self, served: Served, config: Path, paths: dict[str, Path], rng: random.Random
    ) -> None:
        self._served, self._config, self._rng = served, config, rng
        self._circuits = {name: circuit_of(path) for name, path in paths.items()}
        (socket,) = (p for p, who in listening().items() if who.pid == served.process.pid)
        self._admin = AdminClient(socket)
        self._over = threading.Event()
        self._gone: set[str] = set()
        """Models that were not served for a while since the last quiet point."""
        self.answers: Counter[int] = Counter()
        self.acts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.most_held = 0

    def under_load(self, seconds: float) -> None:
        self._over.clear()
        self._gone.clear()
        work: Sequence[Callable[[random.Random], None]] = (
            *[self._asks] * CLIENTS,
            self._harms,
            self._counts,
        )
        threads = [
            threading.Thread(target=self._guarded, args=(each, random.Random(self._rng.random())))
            for each in work
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._over.set()
        for thread in threads:
            thread.join(2 * ANSWER_S)
            assert not thread.is_alive(), "a request hangs"

    def at_rest(self) -> None:
        """Check that the books are what engines hold, as seen from outside, once no request waits
        or runs.
        """

        def quiet() -> bool:
            tenants = self._admin.tenants().tenants
            settled = {"ready", "sleeping", "stopped"}
            idle = all(t.state in settled and not t.running + t.waiting for t in tenants)
            return idle and {t.name for t in tenants} == set(NAMES)

        self._until(quiet, "nobody runs")
        # An engine grows and shrinks for a moment after its last request.
        self._until(lambda: self._booked() == held_bytes(self._served), "the books are true")

    def _booked(self) -> int:
        return sum(t.held_bytes for t in self._admin.tenants().tenants)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 180
        while not holds():
            if time.monotonic() > deadline:
                told = [
                    (t.name, t.state, t.reason, t.running, t.waiting, t.held_bytes)
                    for t in self._admin.tenants().tenants
                ]
                raise AssertionError(f"{what}: not so, {told}, {held_bytes(self._served)} held")
            time.sleep(0.2)

    # -- what goes on under load ---------------------------------------------------------

    def _guarded(self, work: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            while not self._over.is_set():
                work(rng)
        except Exception as error:
            self.wrong.append(f"{work.__name__}: {error!r}")
            self._over.set()

    def _asks(self, rng: random.Random) -> None:
        """Send one request; models that come first in the alphabet get more requests."""
        name = NAMES[min(int(rng.expovariate(0.5)), len(NAMES) - 1)]
        prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 120))]
        length = rng.randrange(1, 100)
        body = {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        status, answer = self._served.request("POST", "/v1/completions", body)
        self.answers[status] += 1
        if status == 200:
            said = answer["choices"][0]["token_ids"]
            if said != self._circuits[name].generate(prompt, length):
                self.wrong.append(f"{name} says {said} after {prompt}")
        elif status not in FAILED and not (status == 404 and name in self._gone):
            self.wrong.append(f"{name}: {status} {answer}")
        time.sleep(rng.expovariate(4))

    def _harms(self, rng: random.Random) -> None:
        if self._over.wait(rng.expovariate(1 / HARM_S)):
            return
        name = rng.choice(NAMES)
        what = rng.choice(("kill", "freeze", "remove", *OperatorAct))
        self.acts[what] += 1
        if what in ("kill", "freeze"):
            number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
            for process in self._engine(name, rng):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            return
        if what == "remove":
            self._removes(name, rng)
            return
        with contextlib.suppress(CommandFailed):  # its state does not allow it now
            self._admin.act(name, OperatorAct(what))

    def _removes(self, name: str, rng: random.Random) -> None:
        """Remove a model for some seconds; the engines of others do not notice."""
        self._gone.add(name)
        assert self._admin.remove(name).removed == (name,)
        self._over.wait(rng.uniform(0, 5))
        told = self._admin.apply(self._config.read_text(), self._config)
        assert (told.added, told.changed, told.removed) == ((name,), (), ())

    def _engine(self, name: str, rng: random.Random) -> Iterator[psutil.Process]:
        """Process of an engine's core or API server; None if the model is stopped."""
        with contextlib.suppress(AssertionError, psutil.NoSuchProcess, ValueError):
            core = self._served.engine_core(name)
            yield rng.choice([core, core.parent() or core])

    def _counts(self, rng: random.Random) -> None:
        self.most_held = max(self.most_held, held_throughout(self._served))
        time.sleep(0.3)
