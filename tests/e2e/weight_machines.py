"""Machines with weight stores: commands and servers of `mirage weights` as processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forked
from model_folder import make_folder

from mirage.weights.adding import add, looked_at
from mirage.weights.changes import StoreChanges
from mirage.weights.manifest import WeightsManifest
from mirage.weights.store import WeightStore

ROOT = Path(__file__).parents[2]
CHUNK = 64 * 1024
"""Bytes of a chunk of models here, so that small ones have many."""
DEADLINE_S = 120
PATIENCE_S = 10
"""`--patience` of a pull in seconds: longer than a process takes to start on a busy machine."""


def make_model(folder: Path, nbytes: int = 40 * CHUNK + 5, seed: int = 1) -> Path:
    """Model folder with `nbytes` random bytes of weights, and another file in a subfolder."""
    make_folder(folder)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling": "mean"}))
    (folder / "model.safetensors").write_bytes(random.Random(seed).randbytes(nbytes))
    return folder


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Context in which a process is stopped (SIGSTOP); it continues at the end."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


class Machine:
    """A machine with a weight store, both in a folder of its own."""

    def __init__(self, place: Path, secret: Path) -> None:
        self.store, self.secret = WeightStore(place), secret

    def add(self, folder: Path, name: str) -> WeightsManifest:
        changes = StoreChanges(self.store)
        return add(changes, looked_at(folder), name, lambda done: None, CHUNK)

    def words(self, *words: object) -> list[str]:
        command = [sys.executable, "-m", "mirage", "weights", *map(str, words)]
        return [*command, "--store", str(self.store.place)]

    def mirage(
        self, *words: object, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        command = self.words(*words)
        if not before:
            return forked.run(command[1:], env=os.environ, cwd=ROOT, timeout=DEADLINE_S)
        return subprocess.run(
            [*before, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=DEADLINE_S,
        )

    def pull(
        self, wanted: str, *sources: str, secret: Path | None = None, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.mirage(*self.pulling(wanted, *sources, secret=secret), before=before)

    def pulling(
        self, wanted: str, *sources: str, secret: Path | None = None, patience_s: float = PATIENCE_S
    ) -> list[str]:
        named = [word for source in sources for word in ("--from", source)]
        options = ["--secret", str(secret or self.secret), "--patience", str(patience_s)]
        return ["pull", wanted, *named, *options]

    def begin(
        self, wanted: str, *sources: str, patience_s: float = PATIENCE_S
    ) -> subprocess.Popen[str]:
        """Start a pull of `wanted`, and do not wait for it."""
        return subprocess.Popen(
            self.words(*self.pulling(wanted, *sources, patience_s=patience_s)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def here(self, model: str) -> int:
        """Bytes of a model in this machine's store; 0 without its manifest."""
        return next((one.here for one in self.store.models() if one.id == model), 0)

    def until(self, model: str, nbytes: int) -> None:
        """Wait until this machine has at least `nbytes` bytes of a model."""
        deadline = time.monotonic() + DEADLINE_S
        while self.here(model) < nbytes:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @contextmanager
    def serving(self, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """Run a server of weights while the block runs; gives its address and process."""
        command = self.words("serve", "--secret", self.secret, "--port", "0", *words)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with ExitStack() as stack:
            process = stack.enter_context(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
                )
            )
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert "http://" in line, line
                yield line.rpartition(" ")[2].strip(), process
            finally:
                process.kill()
                process.wait()


def same(folder: Path, other: Path) -> bool:
    """True if two folders have the same files with the same content."""
    return contents(folder) == contents(other)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out.strip(), err
