"""Folders of models and adapters with drawn faults, and the result of `mirage check` on them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from supervised import WITH_FAKES

from mirage.folder import adapter, generation, model_config, tokenizer, weights
from tests.commands import SEED

ROOT = Path(__file__).parents[2]

JSON = (
    *(model_config.NAME, weights.INDEX, tokenizer.TOKENIZER, tokenizer.SETTINGS),
    *(*tokenizer.OBJECTS, generation.NAME, adapter.NAME),
)
FILES = (*JSON, "model.safetensors", adapter.WEIGHTS, tokenizer.TEMPLATE)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 27901454\n"
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 10**9, 10**400, 0.5, -0.0, 1e308, float("nan")),
    *("", "4", "x" * 9999, "\ud800", "a\nb", "../x", "{% if %}", [], {}, [[]], [None], {"": None}),
)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Random JSON value."""
    if depth > 2 or draw.random() < 0.7:
        return draw.choice(SCALARS)
    inside = [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return inside if draw.random() < 0.5 else {str(n): each for n, each in enumerate(inside)}


def odd_json(path: Path, draw: random.Random) -> None:
    """Change or remove one value somewhere in a JSON file, or replace the whole content."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        content = {}
    place: Any = content
    while isinstance(place, (dict, list)) and place:
        key = draw.choice([*place]) if isinstance(place, dict) else draw.randrange(len(place))
        inside = place[key]
        if isinstance(inside, (dict, list)) and inside and draw.random() < 0.6:
            place = inside
            continue
        if draw.random() < 0.2:
            del place[key]
        else:
            place[key] = value(draw)
        break
    else:
        content = value(draw)
    path.write_text(json.dumps(content))


def odd_bytes(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.choice([b"", POINTER, b"[" * 99_999, b"\xff\xfe", draw.randbytes(64)]))


def cut(path: Path, draw: random.Random) -> None:
    if path.is_file():
        os.truncate(path, draw.randrange(path.stat().st_size + 1))


def flipped(path: Path, draw: random.Random) -> None:
    """Change some of the first bytes of a file, where its header is."""
    if path.is_file() and (content := bytearray(path.read_bytes())):
        for _ in range(draw.randrange(1, 5)):
            content[draw.randrange(min(len(content), 500))] = draw.randrange(256)
        path.write_bytes(content)


def no_file(path: Path, draw: random.Random) -> None:
    """Remove the file, or put a folder, pipe or bad link in its place."""
    path.unlink(missing_ok=True)
    makers: list[Callable[[], Any]] = [
        lambda: None,
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("/nowhere"),
        lambda: path.symlink_to("/dev/zero"),
    ]
    draw.choice(makers)()


WAYS = (*[odd_json] * 5, odd_bytes, cut, flipped, no_file)


def odd(like: Path, folder: Path, draw: random.Random) -> Path:
    """Copy of the model or adapter `like` in which one or two files have faults."""
    shutil.copytree(like, folder)
    for _ in range(draw.choice([1, 1, 2])):
        way = draw.choice(WAYS)
        known = JSON if way is odd_json else FILES
        here = [name for name in known if (folder / name).is_file()]
        way(_free(folder / draw.choice(here if here and draw.random() < 0.8 else known)), draw)
    return folder


def _free(path: Path) -> Path:
    """The path, after removing an earlier fault that would prevent writing a file there."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        path.unlink()
    return path


def drawn(name: str) -> random.Random:
    """Random generator for `name`, the same in each run with the same seed."""
    return random.Random(f"{os.environ[SEED]} {name}")


def tenant(name: str, model: Path, share: float, *adapters: Path, **more: Any) -> dict[str, Any]:
    """A tenant section of a configuration."""
    lora = {"enable_lora": True, "lora_modules": [f"{name}-{a.name}={a}" for a in adapters]}
    arguments = lora if adapters else {}
    return {"name": name, "model": str(model), "share": share, "engine_args": arguments} | more


def check(folder: Path, tenants: list[dict[str, Any]], fake: bool, memory: str) -> set[str]:
    """Names of the tenants that `mirage check` accepts. Fails if the refusals take more than one
    line, or if a tenant is neither accepted nor refused.
    """
    path = folder / "config.yaml"
    content = {"device": {"memory": memory}, "dtype": "float32", "tenants": tenants}
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [sys.executable, *([WITH_FAKES] if fake else ["-m", "mirage"]), "check", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
    )
    lines = done.stderr.splitlines()
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert len(lines) == (1 if done.returncode else 0), done.stderr[-3000:]
    names = {each["name"] for each in tenants}
    accepted = {row.split()[0] for row in done.stdout.splitlines()} & names
    refused = {name for name in names if f"tenant {name!r}: " in done.stderr}
    assert accepted | refused == names and not accepted & refused
    return accepted
