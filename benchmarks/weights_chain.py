"""Time for one machine's weights to reach three others: one after the other, at once, and chained.

python benchmarks/weights_chain.py [--mib 96] [--rate 8MiB] [--repeats 3]

Each machine is a store with a server of `mirage weights` on loopback, which sends at most `--rate`
a second; that stands for its link. *One after the other*, each receiver knows only the first
machine, and starts when the one before is complete. *At once*, each knows only the first machine,
and they start together. *Chained*, they know each other too. The program prints medians, as
multiples of the time of one receiver.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mirage.units import MIB

RECEIVERS = 3
CHUNK_BYTES = MIB
"""Bytes of a chunk here: a model has as many chunks as a large one has of the usual size."""
COMMAND = (sys.executable, "-m", "mirage", "weights")
ADD = """
import sys
from pathlib import Path
from mirage.weights.adding import add, looked_at
from mirage.weights.changes import StoreChanges
from mirage.weights.store import WeightStore
store, folder, chunk = WeightStore(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
add(StoreChanges(store), looked_at(folder), "model", lambda done: None, chunk)
"""


class WeightMachines:
    """A machine with a model, and others without, each with a server that runs."""

    def __init__(self, folder: Path, mib: int, rate: str) -> None:
        self._folder, self._rate = folder, rate
        self._secret = folder / "secret"
        self._secret.write_text("the secret of a benchmark")
        self._secret.chmod(0o600)
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(random.Random(0).randbytes(mib * MIB))
        self._servers: list[subprocess.Popen[str]] = []
        words = [sys.executable, "-c", ADD, str(self._place(0)), str(model), str(CHUNK_BYTES)]
        subprocess.run(words, check=True)

    def start(self) -> list[str]:
        """Start all machines' servers; returns their addresses once they listen. The receivers'
        stores are emptied first.
        """
        for number in range(1, RECEIVERS + 1):
            shutil.rmtree(self._place(number), ignore_errors=True)
        return [self._listening(number) for number in range(RECEIVERS + 1)]

    def stop(self) -> None:
        """End all servers."""
        for server in self._servers:
            server.kill()
            server.wait()
        self._servers.clear()

    def pull(self, number: int, sources: Sequence[str]) -> subprocess.Popen[str]:
        """Start the pull of a receiver from these sources, and do not wait for it."""
        named = [word for url in sources for word in ("--from", url)]
        words = [*COMMAND, "pull", "model", *named, *self._own(number)]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _listening(self, number: int) -> str:
        words = [*COMMAND, "serve", "--port", "0", "--rate", self._rate, *self._own(number)]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._servers.append(server)
        assert server.stdout is not None
        return server.stdout.readline().rpartition(" ")[2].strip()

    def _own(self, number: int) -> list[str]:
        return ["--store", str(self._place(number)), "--secret", str(self._secret)]

    def _place(self, number: int) -> Path:
        return self._folder / f"store{number}"


def alone(machines: WeightMachines, urls: Sequence[str]) -> None:
    ended([machines.pull(1, urls[:1])])


def in_turn(machines: WeightMachines, urls: Sequence[str]) -> None:
    for number in range(1, RECEIVERS + 1):
        ended([machines.pull(number, urls[:1])])


def at_once(machines: WeightMachines, urls: Sequence[str]) -> None:
    ended([machines.pull(number, urls[:1]) for number in range(1, RECEIVERS + 1)])


def chained(machines: WeightMachines, urls: Sequence[str]) -> None:
    others = {n: [url for m, url in enumerate(urls) if m != n] for n in range(1, RECEIVERS + 1)}
    ended([machines.pull(number, others[number]) for number in others])


def ended(pulls: Sequence[subprocess.Popen[str]]) -> None:
    for pull in pulls:
        if pull.wait() != 0:
            raise SystemExit("a receiver failed")


WAYS: dict[str, Callable[[WeightMachines, Sequence[str]], None]] = {
    "one receiver": alone,
    "three in turn": in_turn,
    "three at once": at_once,
    "three chained": chained,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--rate", default="8MiB")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="mirage-weights-") as folder:
        machines = WeightMachines(Path(folder), options.mib, options.rate)
        for _ in range(options.repeats):
            for way, bring in WAYS.items():
                try:
                    urls = machines.start()
                    began = time.perf_counter()
                    bring(machines, urls)
                    took[way].append(time.perf_counter() - began)
                finally:
                    machines.stop()
    base = statistics.median(took["one receiver"])
    print(f"{options.mib} MiB at {options.rate}/s, {options.repeats} repeats")
    print(f"{'':15} {'median, s':>10} {'from':>6} {'to':>6} {'times one':>10}")
    for way, each in took.items():
        median = statistics.median(each)
        print(
            f"{way:15} {median:>10.1f} {min(each):>6.1f} {max(each):>6.1f} {median / base:>10.2f}"
        )


if __name__ == "__main__":
    main()
