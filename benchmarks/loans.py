"""Cost of a loan as `mirage why` reports it, compared with the cost that a client measures.

python -m benchmarks.loans [--pairs 20] [--tokens 20] [--streams 4] [--layers 16] [--layer-mib 8]
                           [--lent 4] [--link-gb-s 1]

`mirage serve` runs as a command. `chat` is a real engine of vLLM's. `code` is a light one
(`loans_engine.py`) that computes nothing, so rounds with and without a loan differ only in the
layers that chat has lent. It lends more than hides (`decode_cap` is off), because otherwise there
would be little to measure. In each round chat decodes the same prompts, and its client measures the
time of a token after the first. A pair has a round of each kind; the kind that is first alternates.
The measured cost is the difference within a pair. The reported cost is the time added to a token by
`GET /why`, in the same round. Intervals are of 95 %, by Student's t over the pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml
from scipy import stats

from benchmarks.loans_engine import BORROW, BORROWER, REST
from benchmarks.served import serving
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.explained import sentence
from mirage.tools.demo.models import make_models

ROOT = Path(__file__).parents[1]
SERVE = """
import sys
from benchmarks.ablations import ablated
from benchmarks.loans_engine import starting
from mirage.cli import main
from mirage.serve.launch.programs import Means
from mirage.processes.child import start_program
with ablated(decode_cap=False):
    main(sys.argv[1:], Means(start=starting(start_program)))
"""
LENDER = "chat"
SETTLES_S = 60.0
PROMPT = 16
LAST_S = 100_000.0


class Round(NamedTuple):
    """One round: mean seconds of a token, and the reported seconds by which the loan made it
    longer.
    """

    token_s: float
    told_s: float
    layers: int


class Pair(NamedTuple):
    """One round with a loan, and one without."""

    lent: Round
    kept: Round

    @property
    def measured_s(self) -> float:
        return self.lent.token_s - self.kept.token_s


class Bench:
    """The server, an operator's client, and the clients of chat."""

    def __init__(self, url: str, admin: AdminClient, file: Path, streams: int, tokens: int) -> None:
        self._url, self._admin, self._file = url, admin, file
        self._streams, self._tokens = streams, tokens

    async def pairs(self, count: int) -> list[Pair]:
        """Measure so many pairs; the first round is not counted."""
        await self._round(lends=False)
        found = []
        for number in range(count):
            kinds = (True, False) if number % 2 == 0 else (False, True)
            rounds = {lends: await self._round(lends=lends) for lends in kinds}
            found.append(Pair(rounds[True], rounds[False]))
        return found

    async def _round(self, *, lends: bool) -> Round:
        self._file.write_text(BORROW if lends else REST)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
            await self._settled(http, lends=lends)
            before = self._told()
            works = [self._stream(http, number) for number in range(self._streams)]
            token_s = statistics.mean(await asyncio.gather(*works))
            layers = await self._layers(http)
            await asyncio.sleep(0.2)  # the last report
            after = self._told()
        tokens = after[1] - before[1]
        told_s = (after[0] - before[0]) / tokens if tokens else 0.0
        return Round(token_s, told_s, layers)

    async def _settled(self, http: aiohttp.ClientSession, *, lends: bool) -> None:
        """Wait until chat has lent its layers, or has them back."""
        until = time.monotonic() + SETTLES_S
        while (await self._layers(http) > 0) != lends:
            if time.monotonic() > until:
                raise SystemExit(f"chat has not {'lent' if lends else 'got back'} its layers")
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)

    async def _layers(self, http: aiohttp.ClientSession) -> int:
        async with http.get(f"{self._url}/mirage/state") as answer:
            state = await answer.json()
        return int(state["tenants"].get(LENDER, {}).get("layers_remapped", 0))

    def _told(self) -> tuple[float, int]:
        """Reported seconds that loans have added to tokens of chat so far, and the number of these
        tokens.
        """
        loans = [one for one in self._admin.why(None, LAST_S).loans if one.lender == LENDER]
        return sum(one.token_s for one in loans), max((one.tokens for one in loans), default=0)

    async def _stream(self, http: aiohttp.ClientSession, number: int) -> float:
        """Read a stream; returns the mean seconds of a token after the first."""
        prompt = [3 + (number * 31 + at * 7) % 200 for at in range(PROMPT)]
        body = {"model": LENDER, "prompt": prompt, "max_tokens": self._tokens, "stream": True}
        body |= {"temperature": 0, "ignore_eos": True}
        times = []
        async with http.post(f"{self._url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
        return (times[-1] - times[0]) / (self._tokens - 1)

    def sentences(self) -> list[str]:
        """The server's sentences on all loans."""
        return [sentence(one) for one in self._admin.why(None, LAST_S).loans]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--layer-mib", type=int, default=8)
    parser.add_argument("--lent", type=int, default=4, help="layers, at most")
    parser.add_argument("--link-gb-s", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as folder:
        file = Path(folder) / "wish"
        file.write_text(REST)
        config = write_config(
            Path(folder),
            layers=options.layers,
            layer_mib=options.layer_mib,
            lent=options.lent,
            link_gb_s=options.link_gb_s,
        )
        with served(config, file) as (url, admin):
            bench = Bench(url, admin, file, options.streams, options.tokens)
            show(asyncio.run(bench.pairs(options.pairs)))
            print("\n".join(bench.sentences()))


def write_config(folder: Path, *, layers: int, layer_mib: int, lent: int, link_gb_s: float) -> Path:
    """Write a configuration in which chat has only the KV memory of its longest request, so that it
    lends layers.
    """
    big, small = folder / "big", folder / "small"
    sizes: dict[str, Any] = {"layers": layers, "layer_bytes": layer_mib << 20}
    (chat,) = make_models(big, which=["llama"], **sizes).values()
    (code,) = make_models(small, which=["llama"], layers=2).values()
    least = {"max_model_len": 512, "max_percent": 100 * lent / layers}
    tenants = [
        {"name": LENDER, "model": str(chat), "share": "auto", **least},
        {"name": BORROWER, "model": str(code), "share": 25, "max_model_len": 128},
    ]
    memory = layers * layer_mib + 128
    device = {"memory": f"{memory}MiB", "link_gb_s": link_gb_s}
    content = {"device": device, "dtype": "float32", "tenants": tenants, "remap": {"rest_s": 0}}
    (path := folder / "config.yaml").write_text(yaml.safe_dump(content))
    return path


@contextmanager
def served(config: Path, file: Path) -> Iterator[tuple[str, AdminClient]]:
    """Run a server while the block runs; gives its address and a client of its admin socket."""
    around = {"PYTHONPATH": str(ROOT), "LOANS_FILE": str(file)}
    with serving(config, (sys.executable, "-c", SERVE), os.environ | around) as server:
        yield server.url, AdminClient(server.socket)


def show(pairs: Sequence[Pair]) -> None:
    """Print milliseconds a token: a line for each pair, then the means of the measured cost, of the
    reported one and of their difference, each with its 95 % interval."""
    print("milliseconds a token")
    print(f"{'layers':>8} {'kept':>9} {'lent':>9} {'measured':>9} {'told':>9}")
    for one in pairs:
        times = one.kept.token_s, one.lent.token_s, one.measured_s, one.lent.told_s
        print(f"{one.lent.layers:>8} " + " ".join(f"{1e3 * seconds:>9.2f}" for seconds in times))
    measured = _interval([one.measured_s for one in pairs])
    told = _interval([one.lent.told_s for one in pairs])
    error = _interval([one.measured_s - one.lent.told_s for one in pairs])
    print(f"measured {_words(measured)}, told {_words(told)}, measured - told {_words(error)}")
    print(f"told of rounds that lent nothing: {1e3 * max(one.kept.told_s for one in pairs):.2f}")
    print("within the interval" if abs(error[0]) <= error[1] else "NOT within the interval")


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval."""
    if len(values) < 2:
        return statistics.mean(values), math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), float(stats.t.ppf(0.975, len(values) - 1)) * error


def _words(interval: tuple[float, float]) -> str:
    return f"{1e3 * interval[0]:.2f} +- {1e3 * interval[1]:.2f}"


if __name__ == "__main__":
    main()
