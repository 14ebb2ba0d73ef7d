"""Starts of the demonstration's engines: cold, as programs, and warm, as forks, in turn.

python benchmarks/starts.py [--rounds 3] [--models opt,llama,qwen3]

Each round starts a server of either kind from nothing, and ends one of its engines by SIGKILL once
all are ready. Printed are the seconds until the server is ready, of the engine's restart without
the pause before it, and the parts that the server tells; the last line compares the medians with
the aims: three tenants from nothing in 25 s, a restart in 10 s and in a quarter of a cold one.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil
import yaml

from mirage.tools.demo.models import make_models

READY = re.compile(r"mirage: (\S+): ready in \d+ s \((\w+) start: (.*)\)")
PART = re.compile(r"([a-z ]+) ([\d.]+) s")
ALL_S, RESTART_S, RATIO = 25.0, 10.0, 0.25
PATIENCE_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="opt,llama,qwen3")
    options = parser.parse_args()
    names = options.models.split(",")
    all_s, again_s = defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mirage-starts-") as folder:
        for number in range(options.rounds):
            for warm in (False, True):
                kind = "warm" if warm else "cold"
                took, again = one(Path(folder), names, warm)
                all_s[kind].append(took)
                again_s[kind].append(sum(again.values()))
                told = ", ".join(f"{part} {seconds:.1f}" for part, seconds in again.items())
                print(f"{number} {kind}: all ready {took:.1f} s; restart {told} s", flush=True)
    first = {kind: statistics.median(seconds) for kind, seconds in all_s.items()}
    restart = {kind: statistics.median(seconds) for kind, seconds in again_s.items()}
    ratio = restart["warm"] / restart["cold"]
    print(f"medians, {len(names)} tenants from nothing: {first} s (aim warm {ALL_S:g})")
    print(f"restart: {restart} s, ratio {ratio:.2f} (aims {RESTART_S:g} s, {RATIO:g})")


def one(folder: Path, names: list[str], warm: bool) -> tuple[float, dict[str, float]]:
    """Seconds until a server is ready, and the parts of the restart of its first engine."""
    ready = folder / "ready.json"
    begun = time.monotonic()
    words = [str(written(folder, names, warm)), "--port", "0", "--ready-file", str(ready)]
    server = subprocess.Popen(
        [sys.executable, "-m", "mirage", "serve", *words],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "said").open("w"),
    )
    try:
        while not ready.exists():
            patient(server, begun)
        took = time.monotonic() - begun
        core_of(server.pid, names[0]).kill()
        while len(starts := of_starts(folder / "said", names[0])) < 2:
            patient(server, begun)
        return took, starts[1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def patient(server: subprocess.Popen[bytes], begun: float) -> None:
    """Wait a little; the server must live, and not take for ever."""
    assert server.poll() is None and time.monotonic() < begun + PATIENCE_S
    time.sleep(0.05)


def written(folder: Path, names: list[str], warm: bool) -> Path:
    """Configuration of these tenants in 90 MiB, as in `configs/demo.yaml`."""
    paths = make_models(folder, which=names)
    tenants = [
        {"name": name, "model": str(path), "share": "auto", "max_model_len": 320}
        for name, path in paths.items()
    ]
    content = {"device": {"memory": "90MiB"}, "dtype": "float32", "tenants": tenants}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content | {"warm_starts": warm}))
    return path


def core_of(server: int, name: str) -> psutil.Process:
    """Engine core of a tenant: the largest child of its API server."""
    for child in psutil.Process(server).children():
        if name in child.cmdline():
            return max(child.children(), key=lambda process: process.memory_info().rss)
    raise LookupError(json.dumps([c.cmdline() for c in psutil.Process(server).children()]))


def of_starts(said: Path, name: str) -> list[dict[str, float]]:
    """Seconds by part of each start of a tenant that the server has told."""
    found = [match for match in map(READY.match, said.read_text().splitlines()) if match]
    parts = [PART.findall(match[3]) for match in found if match[1] == name]
    return [{part.strip(): float(seconds) for part, seconds in each} for each in parts]


if __name__ == "__main__":
    main()
