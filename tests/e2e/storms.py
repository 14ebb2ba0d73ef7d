"""Clients that leave at a random moment, with streamed answers and with whole ones."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException

from supervised import Served


class Storm:
    """`clients` threads, each of which sends requests one after the other and may leave before the
    answer, until stopped.
    """

    def __init__(self, served: Served, models: Sequence[str], clients: int, seed: int = 0) -> None:
        self._served, self._models = served, models
        self._over = threading.Event()
        self.left = self.finished = 0
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._client, args=(random.Random(seed + i),), daemon=True)
            for i in range(clients)
        ]

    def __enter__(self) -> Storm:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _client(self, rng: random.Random) -> None:
        while not self._over.is_set():
            temperature = rng.choice([0, 1])
            body = {
                "model": rng.choice(self._models),
                "prompt": "".join(rng.choices("abcdefgh ", k=rng.randint(20, 150))),
                "max_tokens": rng.randint(1, 150),
                "n": rng.choice([1, 2]) if temperature else 1,
                "temperature": temperature,
                "stream": rng.random() < 0.6,
                "ignore_eos": True,
            }
            if rng.random() < 0.2:
                body["seed"] = rng.randint(0, 9)
            with contextlib.closing(self._served.open("POST", "/v1/completions", body)) as line:
                if rng.random() < 0.15:
                    try:
                        self._read(line.getresponse())
                    except (OSError, HTTPException) as error:
                        self.errors.append(f"{body['model']}: {error!r}")
                else:
                    time.sleep(rng.random() * 0.8)
                    self.left += 1

    def _read(self, answer: object) -> None:
        text = answer.read()  # type: ignore[attr-defined]
        status = answer.status  # type: ignore[attr-defined]
        self.finished += 1
        if status != 200 or b'"error"' in text:
            self.errors.append(f"{status} {text[:300]!r}")


@contextlib.contextmanager
def storm(served: Served, models: Sequence[str], clients: int = 24) -> Iterator[Storm]:
    with Storm(served, models, clients) as made:
        yield made
    assert not made.errors, made.errors[:3]
    assert made.left and made.finished
