"""Times of sleep and wake of a model behind `mirage serve`, compared with their predictions.

python -m benchmarks.waking [--layers 16] [--layer-mib 32] [--kv-mib 512] [--link-gb-s 1]
                               [--rounds 10] [--prompt 81] [--tiers]

A sleep lasts from an operator's command to the state, for a model with its whole KV cache. A wake
lasts from the request to its first token, less the time that the same request takes of a model that
is awake. The last line compares the medians with the aims: a sleep under 100 ms, a wake of at most
1.5 times its bytes over the link and 50 ms. A long prompt is computed while layers are loaded, so
its wake is shorter than that of a short one. The bytes of the sleeping model are those that `check`
promises, and the blocks of the engine's memory files, counted from outside.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import yaml

from benchmarks.served import ServedCommand, serving
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.tools.demo.models import make_models

NAME = "llama"
SLEEP_AIM_S, WAKE_AIM, WAKE_AIM_S = 0.1, 1.5, 0.05


class Round(NamedTuple):
    """One sleep and the wake after it; seconds, and bytes of the device."""

    slept_s: float
    first_s: float
    predicted_s: float
    promised: int
    held: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--layer-mib", type=int, default=32)
    parser.add_argument("--kv-mib", type=int, default=512, help="of KV cache beside the layers")
    parser.add_argument("--link-gb-s", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--prompt", type=int, default=81, help="tokens of each prompt")
    parser.add_argument("--tiers", action="store_true", help="keep conversations in host memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirage-waking-") as folder:
        config = _config(Path(folder), options)
        with serving(config) as served:
            _report(options, *_rounds(served, options))


def _config(folder: Path, options: argparse.Namespace) -> Path:
    """Write a configuration of one tenant that may sleep, alone on a device that fits it; returns
    the path.
    """
    layer = options.layer_mib << 20
    (model,) = make_models(
        folder, which=[NAME], hidden=1024, layers=options.layers, layer_bytes=layer
    ).values()
    tenant = {"name": NAME, "model": str(model), "share": 100, "max_model_len": 512}
    content = {
        "device": {
            "memory": f"{options.layers * options.layer_mib + options.kv_mib}MiB",
            "link_gb_s": options.link_gb_s,
        },
        "dtype": "float32",
        "roster": {"worth": 0},
        "tenants": [tenant],
    }
    if options.tiers:
        content["tiers"] = {"host": {"bytes": "64MiB"}}
    (path := folder / "config.yaml").write_text(yaml.safe_dump(content))
    return path


def _rounds(served: ServedCommand, options: argparse.Namespace) -> tuple[float, list[Round]]:
    """Median seconds to a first token of the awake model, and the measurements of each round."""
    server, url, admin = psutil.Process(served.pid), served.url, AdminClient(served.socket)
    _first_token_s(url, options.prompt)
    # Prefixes are cached in the first round alone, so each prompt is another one.
    awake = [_first_token_s(url, options.prompt, number) for number in range(3, 8)]
    rounds = []
    for number in range(options.rounds):
        _settle(server)
        slept = _sleep_s(admin)
        told = admin.tenant(NAME)
        assert told.ready_s is not None and told.asleep_bytes is not None
        held = _held_bytes(server)
        first = _first_token_s(url, options.prompt, 10 + number)
        rounds.append(Round(slept, first, told.ready_s, told.asleep_bytes, held))
    return statistics.median(awake), rounds


def _settle(server: psutil.Process) -> None:
    """Wait until the tenant's memory grows no more, because KV memory comes after a wake."""
    before = -1
    while before < (held := _held_bytes(server)):
        before = held
        time.sleep(1)


def _sleep_s(admin: AdminClient) -> float:
    with admin.watch() as lines:
        since = time.monotonic()
        admin.act(NAME, OperatorAct.SLEEP)
        for change in lines:
            if change.state == "sleeping":
                return time.monotonic() - since
    raise SystemExit("the server ended while its tenant fell asleep")


def _first_token_s(url: str, tokens: int, number: int = 0) -> float:
    """Seconds from the request to its first token; the rest of its answer is read too."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)
    prompt = [100 + number, *range(10, 9 + tokens)]
    body = {"model": NAME, "prompt": prompt, "max_tokens": 2, "stream": True, "temperature": 0}
    since = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), _JSON)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    while not answer.readline().startswith(b"data:"):
        pass
    first = time.monotonic() - since
    answer.read()
    connection.close()
    return first


_JSON = {"Content-Type": "application/json"}


def _held_bytes(server: psutil.Process) -> int:
    """Bytes of device memory that the server's processes hold, by the blocks of the files that they
    have open.
    """
    blocks: dict[int, int] = {}
    for process in server.children(recursive=True):
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            if "memfd:vmm" in str(entry.readlink()):
                found = entry.stat()
                blocks[found.st_ino] = found.st_blocks * 512
    return sum(blocks.values())


def _report(options: argparse.Namespace, awake_s: float, rounds: Sequence[Round]) -> None:
    loaded = options.layers * options.layer_mib << 20
    link_s = loaded / (options.link_gb_s * 1e9)
    waits = [each.first_s - awake_s for each in rounds]
    print(f"layers: {loaded / 2**20:.0f} MiB, {link_s * 1e3:.0f} ms over the link")
    print(f"first token of a model that is awake: {awake_s * 1e3:.0f} ms")
    print(
        f"{'sleep, ms':>10} {'wake, ms':>10} {'predicted':>10} {'held, MiB':>10} {'promised':>10}"
    )
    for each, wait in zip(rounds, waits, strict=True):
        print(
            f"{each.slept_s * 1e3:>10.0f} {wait * 1e3:>10.0f} {each.predicted_s * 1e3:>10.0f} "
            f"{each.held / 2**20:>10.2f} {each.promised / 2**20:>10.2f}"
        )
    sleep, wake = statistics.median(each.slept_s for each in rounds), statistics.median(waits)
    aim = WAKE_AIM * link_s + WAKE_AIM_S
    print(
        f"median: sleep {sleep * 1e3:.0f} ms (aim {SLEEP_AIM_S * 1e3:.0f}), wake "
        f"{wake * 1e3:.0f} ms (aim {aim * 1e3:.0f}), predicted "
        f"{statistics.median(each.predicted_s for each in rounds) * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
