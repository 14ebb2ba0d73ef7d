"""Three models on a device with room for one: real engines start, sleep and wake by requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from plain_vllm import Plain, plain
from supervised import DEADLINE_S, Served, assert_gone, serving, write_demo

from mirage.serve.admin.client import AdminClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("opt", "llama", "qwen3")
DEVICE = 24 << 20
OPERATIONS = 30
PROMPTS = ([5, 6, 7, 8], [9] * 40, list(range(20, 90)))


def config(folder: Path) -> Path:
    """Configuration of three tenants with the smallest possible shares, of which one at a time is
    awake.
    """
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


def text_of(served: Served | Plain, name: str, prompt: list[int], tokens: int = 24) -> str:
    body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = served.request("POST", "/v1/completions", body)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def states(served: Served) -> dict[str, str]:
    told = served.request("GET", "/mirage/state")[1]["engines"]
    return {name: one["state"] for name, one in told.items()}


def held_bytes(served: Served) -> int:
    """Bytes of device memory in use, by the allocated blocks of the engines' memory files (memfds),
    as seen from outside.
    """
    return sum(held_files(served).values())


def held_throughout(served: Served) -> int:
    """Bytes that were in use at two readings, the lesser of both for each memory file.

    A reading takes time, so memory that passes from one engine to another meanwhile may be counted
    with both.
    """
    first, second = held_files(served), held_files(served)
    return sum(min(held, second.get(inode, 0)) for inode, held in first.items())


def held_files(served: Served) -> dict[int, int]:
    """Bytes of each memory file (memfd) of the device, by inode."""
    inodes: dict[int, int] = {}
    for process in served.family():
        folder = Path(f"/proc/{process.pid}/fd")
        for entry in folder.iterdir() if folder.is_dir() else ():
            _count(entry, inodes)
    return inodes


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


def operators(served: Served) -> AdminClient:
    """Client of the admin socket whose path the server has printed."""
    said = served.until("it tells", lambda: [x for x in served.log if "operators: --socket" in x])
    return AdminClient(Path(said[0].split()[-1]))


def pooled(served: Served) -> set[str]:
    """Names of the tenants that are members of the host pool."""
    return set(served.request("GET", "/mirage/state")[1]["host_pool"]["tenants"])


def settled(served: Served, names: tuple[str, ...]) -> None:
    served.until("it has settled", lambda: tuple(sorted(states(served))) == tuple(sorted(names)))


def test_a_model_comes_and_another_goes_while_the_others_say_the_same(tmp_path: Path) -> None:
    path = config(tmp_path)
    whole = yaml.safe_load(path.read_text())
    whole["tiers"]["ssd"] = {"directory": str(tmp_path / "ssd"), "bytes": "64MiB", "keep": True}
    models = {one["name"]: Path(one["model"]) for one in whole["tenants"]}
    with plain(models, **{n: {"max_model_len": 320} for n in NAMES}) as servers:
        right = {(n, i): text_of(servers[n], n, p) for n in NAMES for i, p in enumerate(PROMPTS)}
    two = whole | {"tenants": [one for one in whole["tenants"] if one["name"] != "qwen3"]}
    path.write_text(yaml.safe_dump(two))

    def check(served: Served, *names: str) -> None:
        for name in names:
            for number, prompt in enumerate(PROMPTS):
                assert text_of(served, name, prompt) == right[name, number]
                assert 0 < held_bytes(served) <= DEVICE

    with serving(path, fake=False, ready_timeout_s=600) as served:
        served.patience_s = 600
        served.drain()
        operator = operators(served)
        check(served, "opt", "llama")
        told = operator.apply(yaml.safe_dump(whole), path)
        assert told.added == ("qwen3",)
        check(served, *NAMES)
        served.until("qwen3 is in the pool", lambda: pooled(served) == {*NAMES})
        assert operator.remove("llama").removed == ("llama",)
        settled(served, ("opt", "qwen3"))
        served.until("llama has left the pool", lambda: pooled(served) == {"opt", "qwen3"})
        check(served, "opt", "qwen3")
        operator.apply(yaml.safe_dump(whole), path)
        check(served, *NAMES)
        operator.remove("opt")
        operator.remove("llama")
        settled(served, ("qwen3",))
        operator.set("qwen3", {"max_num_seqs": 8})
        check(served, "qwen3")
        family = served.family()
        assert served.end(15)[0] == 0
        assert_gone(family)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "ssd").glob("kv-*.blocks"))
    assert b"qwen3" in kept and b"llama" not in kept and b"opt" not in kept
