"""Three models on a device for one of them: real engines start, sleep and wake by requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from supervised import DEADLINE_S, Served, assert_gone, serving, write_demo

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("opt", "llama", "qwen3")
DEVICE = 24 << 20
OPERATIONS = 30
PROMPTS = ([5, 6, 7, 8], [9] * 40, list(range(20, 90)))


def config(folder: Path) -> Path:
    """Each as small as it can be; one is awake at a time."""
    path = write_demo(folder, NAMES, "24MiB")
    content = yaml.safe_load(path.read_text())
    for tenant in content["tenants"]:
        tenant |= {"share": "auto", "start": "on_request", "max_wait_s": 600}
    content["roster"] = {
        "worth": 0,
        "busy_s": 0.5,
        "busy_worth": 0,
        "patience_s": 0.1,
        "drain_s": 0.5,
    }
    content["tiers"] = {"host": {"bytes": "32MiB"}}
    path.write_text(yaml.safe_dump(content))
    return path


def text_of(served: Served, name: str, prompt: list[int], tokens: int = 24) -> str:
    body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def states(served: Served) -> dict[str, str]:
    told = served.request("GET", "/mirage/state")[1]["engines"]
    return {name: one["state"] for name, one in told.items()}


def held_bytes(served: Served) -> int:
    """Bytes of the device by the blocks of the engines' memfds, from outside."""
    inodes: dict[int, int] = {}
    for process in served.family():
        folder = Path(f"/proc/{process.pid}/fd")
        for entry in folder.iterdir() if folder.is_dir() else ():
            _count(entry, inodes)
    return sum(inodes.values())


def _count(entry: Path, inodes: dict[int, int]) -> None:
    try:
        if "memfd:vmm" in str(entry.readlink()):
            found = entry.stat()
            inodes[found.st_ino] = found.st_blocks * 512
    except OSError:
        return


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_texts_are_the_same_however_often_a_model_sleeps(tmp_path: Path) -> None:
    rng = Random(seed := int(os.environ.get("MIRAGE_TEST_SEED") or time.time()))
    print(f"seed {seed}")
    with serving(config(tmp_path), fake=False, ready_timeout_s=600) as served:
        served.patience_s = 600
        served.drain()
        first = {(n, i): text_of(served, n, p) for n in NAMES for i, p in enumerate(PROMPTS)}
        assert set(states(served).values()) == {"ready", "sleeping"}
        for _ in range(OPERATIONS):
            name, number = rng.choice(NAMES), rng.randrange(len(PROMPTS))
            assert text_of(served, name, PROMPTS[number]) == first[name, number]
            assert 0 < held_bytes(served) <= DEVICE
        told: dict[str, Any] = served.request("GET", "/health")[1]
        assert told["status"] == "ok"
        family = served.family()
        assert served.end(15)[0] == 0
        assert_gone(family)
    awakened = [line for line in served.log if "awake in" in line]
    assert len(awakened) >= OPERATIONS / 4
    print("\n".join(awakened))
