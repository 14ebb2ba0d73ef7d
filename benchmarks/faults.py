"""Cost of a killed or frozen process of a server to requests and streams under load.

python -m benchmarks.faults [--real] [--faults KILL:router,STOP:router,...] [--hang 5]

A server with two tenants gets short requests and long streams all the time. Its engines are light
ones, or with `--real` those of the demonstration. Each fault sends SIGKILL or SIGSTOP to one
process. A process that is still stopped after twice `hang_s` is continued. After SIGKILL of the
supervisor another one of the same file is started immediately. The table has for each fault:

- short requests answered each second before it, and after it until the server has recovered (at
  least for five seconds), and the failed ones among them by status;
- streams that ran at the signal, and the number of them that ended well;
- the longest pause between two good answers;
- seconds until all processes and `/health` are as before, and until a new supervisor was ready;
- engines that were replaced.

Then the load pauses. Both tenants have to fall asleep with no request counted; otherwise the table
says what is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.fault_load import OK, Asked, Load, health
from benchmarks.fault_servers import LEASE_S, PARENT, ROLES, Servers
from mirage.errors import CommandFailed, InputRefused
from mirage.tools.demo.models import make_models
from tests.e2e.left_shared import FOLDER, lasting
from tests.e2e.with_fakes import HERE
from tests.pure.model_folder import make_folder

ALL = [f"{how}:{role}" for role in (*ROLES, PARENT) for how in ("KILL", "STOP")]
ORDER = [*ALL, "STOP:supervisor", "KILL:supervisor", *ALL, "KILL:supervisor"]
"""`ALL`, two faults of the supervisor, then `ALL` again under the supervisor that took over, which
is killed last.
"""
KEEP_ALIVE_S, PATIENCE_S, CALM_S, LEAST_S = 2.0, 120.0, 4.0, 5.0
LIGHT = Asked({"prompt": "pids"}, {"prompt": "drip", "max_tokens": 100})
REAL = Asked(
    {"prompt": [5, 6, 7], "max_tokens": 4},
    {"prompt": [5, 6, 7], "max_tokens": 600, "ignore_eos": True},
)
COLUMNS = (
    *("fault", "answers/s", "failed", "streams", "longest pause, s", "whole after, s"),
    *("engines", "afterwards"),
)


async def suffer(servers: Servers, load: Load, fault: str, hang_s: float) -> list[str] | None:
    """Measure one fault, such as "KILL:router", and return its row; the load has paused by then.
    None, with the load going on, if no process has the fault's role.
    """
    how, _, role = fault.partition(":")
    load.begin()
    begun = time.monotonic()
    await until(lambda: time.monotonic() > begun + CALM_S and load.running["_stream"] > 0)
    before = servers.family()
    if role not in before:
        return None
    hit, calm = before[role], [a for a in load.answers if a.begun > begun and a.kind == OK]
    at = time.monotonic()
    hit.send_signal(signal.Signals[f"SIG{how}"])
    new = fault == "KILL:supervisor"
    if new:
        servers.process.wait()
        servers.start()
    ready, told = "", ""
    while time.monotonic() < at + PATIENCE_S:
        await asyncio.sleep(0.1)
        if new and not ready and servers.is_ready():
            ready = f", ready {time.monotonic() - at:.1f}"
        if how == "STOP" and not told and time.monotonic() > at + 2 * hang_s and stopped(hit):
            told = ", continued"
            hit.send_signal(signal.SIGCONT)
        if (ready or not new) and await whole(servers, before, hit, stays=how == "STOP"):
            break
    now = time.monotonic()
    after = servers.family()
    took = f"{now - at:.1f}{ready}{told}" if now < at + PATIENCE_S else f"never{told}"
    await asyncio.sleep(max(0.0, at + LEAST_S - now))
    span = max(now - at, LEAST_S)
    afterwards = await asleep(servers, load)
    late = [a for a in load.answers if at <= a.ended <= at + span]
    good = [a for a in late if a.kind == OK]
    ran = Counter(s.kind for s in load.streams if s.begun < at < s.ended)
    broken = Counter(s.kind for s in load.streams if s.begun >= at and s.kind != OK)
    ends = sorted(a.ended for a in [*calm, *load.answers] if a.kind == OK and begun < a.ended)
    pause = max(b - a for a, b in itertools.pairwise(ends) if b >= at)
    engines = [n for n, p in before.items() if n.startswith("engine") and after.get(n) != p]
    return [
        f"{how} {role}",
        f"{len(calm) / (at - begun):.0f}, {len(good) / span:.0f}",
        kinds(Counter(a.kind for a in load.answers if a.ended >= at and a.kind != OK)),
        f"{ran[OK]} of {ran.total()}" + (f"; later {kinds(broken)}" if broken else ""),
        f"{pause:.1f}",
        took,
        ", ".join(engines) or "same",
        afterwards,
    ]


def kinds(found: Counter[str]) -> str:
    """Number of answers by kind."""
    return ", ".join(f"{number} {kind}" for kind, number in found.items()) or "0"


def stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


async def whole(
    servers: Servers, before: dict[str, psutil.Process], hit: psutil.Process, *, stays: bool
) -> bool:
    """True if each role of `before` has a process, none of them is stopped, and `/health` says ok.
    With `stays` one of them may be `hit`, the process that got the signal; otherwise it must have
    ended.
    """
    now = servers.family()
    there = now.keys() >= before.keys() and not any(stopped(one) for one in now.values())
    return there and (stays or hit not in now.values()) and await health(servers.url) == "ok"


async def asleep(servers: Servers, load: Load) -> str:
    """End the load, and wait until both tenants sleep; returns a text that says so, or after a time
    limit the states and counts that they still show.
    """
    await load.end()
    begun, told = time.monotonic(), "no answer"
    while time.monotonic() < begun + KEEP_ALIVE_S + 20.0:
        with contextlib.suppress(CommandFailed, InputRefused, OSError, StopIteration):
            tenants = (await asyncio.to_thread(servers.admin().tenants)).tenants
            told = ", ".join(f"{t.name} {t.state} {t.running}/{t.waiting}" for t in tenants)
            if all((t.state, t.running, t.waiting) == ("sleeping", 0, 0) for t in tenants):
                return "asleep"
        await asyncio.sleep(0.5)
    return told


async def until(holds: Any) -> None:
    """Wait until a condition holds. Raises `TimeoutError` after 600 s."""
    async with asyncio.timeout(600.0):
        while not holds():
            await asyncio.sleep(0.1)


async def run(servers: Servers, tenants: list[str], asked: Asked, faults: Any, hang: float) -> None:
    """Measure all faults one after the other, and print a line for each."""
    servers.start()
    await until(servers.is_ready)
    load = Load(servers.url, tenants, asked, short=2, long=2)
    try:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
        for fault in faults:
            if (row := await suffer(servers, load, fault, hang)) is not None:
                print(f"| {' | '.join(row)} |", flush=True)
    finally:
        await load.stop()


@contextlib.contextmanager
def nothing_left(servers: Servers, folder: Path) -> Iterator[None]:
    """Context that ends the server at its end, and prints what is left of it."""
    shared = set(FOLDER.iterdir())
    try:
        yield
    finally:
        servers.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            servers.process.wait(PATIENCE_S)
        deadline = time.monotonic() + 10.0
        while (rest := left(servers)) and time.monotonic() < deadline:
            time.sleep(0.2)
        places = [path.name for path in folder.glob("mirage-*")]
        files = [path.name for path in lasting(shared, 5.0)]
        print(f"left: processes {rest}, folders {places}, files in {FOLDER} {files}")


def left(servers: Servers) -> list[str]:
    """Command lines of this process's descendants that still run; ended ones are reaped."""
    servers.family()
    rest = psutil.Process().children(recursive=True)
    return [" ".join(one.cmdline()[:4]) for one in rest if one.is_running()]


def configuration(folder: Path, hang_s: float, *, real: bool) -> tuple[Path, list[str]]:
    """Write a configuration of two tenants that sleep after a short pause; return its path and
    their names.
    """
    tenant: dict[str, Any] = {"keep_alive": KEEP_ALIVE_S, "max_wait_s": 120}
    if real:
        paths = make_models(folder, which=["opt", "llama"])
        device, tenant = "90MiB", {**tenant, "share": "auto", "max_model_len": 1024}
    else:
        make_folder(folder / "model")
        paths = dict.fromkeys("ab", folder / "model")
        device, tenant = "4MiB", {**tenant, "share": 40, "max_model_len": 128}
    content = {
        "device": {"memory": device},
        "dtype": "float32",
        "hang_s": hang_s,
        "lease_s": LEASE_S,
        "tenants": [{"name": n, "model": str(path), **tenant} for n, path in paths.items()],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path, list(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="vLLM's engines, not light ones")
    parser.add_argument("--faults", default=",".join(ORDER), help="as SIGNAL:ROLE, in this order")
    parser.add_argument("--hang", type=float, default=5.0, metavar="SECONDS", help="hang_s")
    told = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    program = ["-m", "mirage"] if told.real else [str(HERE / "with_fakes.py")]
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as name:
        config, tenants = configuration(Path(name), told.hang, real=told.real)
        servers = Servers(Path(name), config, [sys.executable, *program])
        asked = REAL if told.real else LIGHT
        with nothing_left(servers, Path(name)):
            asyncio.run(run(servers, tenants, asked, told.faults.split(","), told.hang))


if __name__ == "__main__":
    main()
