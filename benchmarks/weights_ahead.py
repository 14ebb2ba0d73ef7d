"""Time until a model serves on a machine that lacks its weights, or got them in advance.

python -m benchmarks.weights_ahead [--layer-mib 8] [--rate 8MiB] [--repeats 3]

A server with a model runs beside a machine that has another model's weights and sends at most
`--rate` a second, which stands for its link. The other model comes as in a step of a move: its
weights are brought, the server gets it as a tenant, and its engine starts. The two cases alternate:
the store is empty, or all weights were brought before the time begins. Engines are vLLM's, on the
CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.served import MIRAGE, serving
from mirage.control.roster.states import LifeState
from mirage.serve.apply.source import written
from mirage.serve.machine.calls import DeviceCalls
from mirage.serve.models.weights_progress import AheadState
from mirage.tools.demo.models import make_models
from mirage.units import MIB

HERE, LATE = "opt", "llama"
LOOK_S = 0.1
WAYS = {"nothing there": False, "brought ahead": True}


class AheadFolder:
    """Folder with two models, the stores of both machines, and the server's configuration."""

    def __init__(self, folder: Path, layer_mib: int) -> None:
        self.folder, self.store, self.origin = folder, folder / "here", folder / "origin"
        self.secret = folder / "secret"
        self.secret.write_text("the secret of a benchmark")
        self.secret.chmod(0o600)
        self.models = make_models(folder, which=[HERE, LATE], layer_bytes=layer_mib * MIB)
        self.bytes = sum(file.stat().st_size for file in self.models[LATE].iterdir())
        self.weights("add", self.models[LATE], "--name", LATE, store=self.origin)

    def weights(self, *words: object, store: Path) -> None:
        """Run the command `mirage weights` with a store."""
        command = [*MIRAGE, "weights", *map(str, words), "--store", str(store)]
        subprocess.run(command, check=True, capture_output=True)

    def config(self, url: str, *names: str) -> dict[str, Any]:
        """Content of a configuration with these tenants, whose missing weights come from `url`."""
        models = {HERE: str(self.models[HERE]), LATE: f"weights:{LATE}"}
        keys = {"share": 45, "max_model_len": 320, "keep_weights": "none"}
        return {
            "device": {"memory": f"{4 * self.bytes // MIB}MiB"},
            "dtype": "float32",
            "tenants": [{"name": name, "model": models[name], **keys} for name in names],
            "weights": {"store": "here", "secret": "secret", "sources": [url]},
        }


class MovingServer:
    """A server that gets the late model, and gives it up again."""

    def __init__(self, place: AheadFolder, url: str, calls: DeviceCalls) -> None:
        self._place, self._url, self._calls = place, url, calls

    async def comes(self) -> float:
        """Bring the late model's weights and apply a configuration with it; returns the seconds
        until it is ready.
        """
        begun = time.perf_counter()
        while (told := await self._calls.brings(LATE)).state is AheadState.COMING:
            await asyncio.sleep(LOOK_S)
        if told.state is AheadState.FAILED:
            raise SystemExit(told.why)
        await self._serves(HERE, LATE)
        while (await self._states()).get(LATE) != LifeState.READY:
            await asyncio.sleep(LOOK_S)
        return time.perf_counter() - begun

    async def goes(self) -> None:
        """Apply a configuration without the late model, wait until it is gone, and remove its
        weights.
        """
        await self._serves(HERE)
        while LATE in await self._states():
            await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(self._place.weights, "remove", LATE, store=self._place.store)

    async def _serves(self, *names: str) -> None:
        text = msgspec.json.encode(self._place.config(self._url, *names)).decode()
        path = self._place.folder / "config.yaml"
        await self._calls.serves(text, written(text, path, path.parent), 0.0)

    async def _states(self) -> dict[str, str]:
        return {one.name: one.state for one in (await self._calls.tenants()).tenants}


async def timed(server: MovingServer, place: AheadFolder, url: str, *, ahead: bool) -> float:
    """Seconds until the model serves, with its weights pulled ahead or not; the store lacks them
    before and after.
    """
    if ahead:
        words = ("pull", LATE, "--from", url, "--secret", place.secret)
        await asyncio.to_thread(place.weights, *words, store=place.store)
    took = await server.comes()
    await server.goes()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer-mib", type=int, default=8)
    parser.add_argument("--rate", default="8MiB")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="mirage-ahead-") as folder:
        place = AheadFolder(Path(folder), options.layer_mib)
        words = ["weights", "serve", "--port", "0", "--rate", options.rate]
        words += ["--store", str(place.origin), "--secret", str(place.secret)]
        with subprocess.Popen([*MIRAGE, *words], stdout=subprocess.PIPE, text=True) as sender:
            try:
                assert sender.stdout is not None
                url = sender.stdout.readline().rpartition(" ")[2].strip()
                path = place.folder / "config.yaml"
                path.write_text(yaml.safe_dump(place.config(url, HERE)))
                with serving(path) as served:
                    server = MovingServer(place, url, DeviceCalls("host", served.socket))
                    for _ in range(options.repeats):
                        for way, ahead in WAYS.items():
                            took[way].append(asyncio.run(timed(server, place, url, ahead=ahead)))
            finally:
                sender.kill()
    base = statistics.median(took["nothing there"])
    print(f"{place.bytes / MIB:.0f} MiB at {options.rate}/s, {options.repeats} repeats")
    print(f"{'':15} {'median, s':>10} {'from':>6} {'to':>6} {'ratio':>6}")
    for way, each in took.items():
        median = statistics.median(each)
        print(f"{way:15} {median:>10.1f} {min(each):>6.1f} {max(each):>6.1f} {median / base:>6.2f}")


if __name__ == "__main__":
    main()
