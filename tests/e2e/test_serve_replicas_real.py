"""Addresses of two replicas with real engines: an OpenAI client, vllm-router, and a new file."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import pytest
import yaml
from supervised import Served, assert_gone, serving, write_demo
from test_serve_devices import LEFT, RIGHT
from test_serve_devices_real import _runs
from test_vllm_router import in_front

from mirage.tools.demo.circuit import Circuit
from mirage.tools.demo.models import circuit_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "qwen3"
ROUNDS = 4
LIMIT_S = 300.0


def answered(server: Served, device: str) -> float:
    """Number of requests that the engine of a replica has completed, by its own metrics."""
    with urlopen(f"{server.url}/replicas/{device}/{MODEL}/metrics", timeout=LIMIT_S) as told:
        lines = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", told.read().decode(), re.M)
    return sum(map(float, lines))


def assert_right(circuit: Circuit, ask: Callable[[list[int], int], Any]) -> None:
    """Check that all answers of `ask` to random prompts are what the model computes alone."""
    rng = random.Random(7)
    for _ in range(ROUNDS):
        prompt, length = [rng.randrange(256) for _ in range(rng.randrange(1, 100))], 40
        assert ask(prompt, length) == circuit.generate(prompt, length)


def asks(url: str) -> Callable[[list[int], int], Any]:
    """Function that sends a completion to `url` with OpenAI's own client, and returns the tokens of
    the answer.
    """
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0)

    def ask(prompt: list[int], length: int) -> Any:
        told = client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=length,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        return told.choices[0].model_extra["token_ids"]  # type: ignore[index]

    return ask


def test_each_replica_answers_at_its_own_address_as_the_model_does(tmp_path: Path) -> None:
    config = write_demo(tmp_path, [MODEL], "40MiB", hang_s=30)
    told = yaml.safe_load(config.read_text())
    device = told.pop("device")
    told["devices"] = [device | {"name": name} for name in (LEFT, RIGHT)]
    told["tenants"] = [told["tenants"][0] | {"share": 50, "devices": [LEFT, RIGHT]}]
    config.write_text(yaml.safe_dump(told))
    circuit = circuit_of(Path(told["tenants"][0]["model"]))
    with serving(config, fake=False, ready_timeout_s=600) as server:
        server.drain()
        urls = {name: f"{server.url}/replicas/{name}/{MODEL}" for name in (LEFT, RIGHT)}
        family = server.family()
        try:
            for name, url in urls.items():
                before = {each: answered(server, each) for each in urls}
                assert_right(circuit, asks(url))
                wanted = {each: before[each] + ROUNDS * (each == name) for each in urls}
                server.until(
                    "it has told", lambda w=wanted: {n: answered(server, n) for n in w} == w
                )
            assert_right(circuit, asks(server.url))
            if find_spec("vllm_router") is not None:
                before = {each: answered(server, each) for each in urls}
                with in_front(tmp_path / "log", "--worker-urls", *urls.values()) as front:
                    assert_right(circuit, asks(front.url))
                server.until(
                    "both have answered",
                    lambda b=before: all(answered(server, n) > b[n] for n in b),
                )
            told["tenants"][0]["devices"] = [RIGHT]
            config.write_text(yaml.safe_dump(told))
            words = [sys.executable, "-m", "mirage", "apply", "-f", str(config), "--wait"]
            words += ["--socket", socket_of(server)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
            assert done.returncode == 0 and f"{MODEL} is absent on {LEFT}" in done.stdout, done
            assert_right(circuit, asks(server.url))
            with pytest.raises(openai.InternalServerError, match="ask another replica"):
                asks(urls[LEFT])([1], 1)
        except BaseException:
            print("".join(server.log))
            raise
        family |= server.family()
        assert server.end(signal.SIGTERM)[0] == 0
    assert_gone({process for process in family if _runs(process)})


def socket_of(server: Served) -> str:
    """Path of the server's admin socket, as its log prints it."""
    (line,) = [one for one in server.log if "operators: --socket" in one and "admin-" in one]
    return line.split()[-1]
