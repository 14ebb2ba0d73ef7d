"""More models than fit behind `mirage serve` (``gpu-many``), which sleep and wake by requests."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_child import need_vllm
from benchmarks.gpu.rows import Row, median, ms
from benchmarks.gpu.serving import ENDING_S, OUTPUT
from benchmarks.gpu.tied import tied
from benchmarks.gpu.ways import GRAPHS, ON_GPU
from benchmarks.served import MIRAGE, ServedCommand, serving

NAMES = ("one", "two", "three")
MEMORY = {True: "40MiB", False: "68GiB"}
"""Memory of the device, dry (True) and on a GPU (False): for one small model, and for two
OPT-13b."""
ROUNDS = 4
"""Rounds over all models. In each round every model is asked as often as `ASKED`."""
ASKED = 2
"""Requests to a model, one after the other: the first may wake it, the last finds it awake."""
TOKENS = 16
GIB = 1 << 30


class Asked(NamedTuple):
    """One answered request; times in seconds."""

    model: str
    state: str
    """State of the tenant just before the request was sent."""
    first_s: float
    text: str


def served(bench: Bench) -> Iterator[Row]:
    """Rows on requests to three models, one after the other, on a device that holds two of OPT-13b
    awake."""
    need_vllm()
    what = "three small models" if bench.dry else "three OPT-13b on 68 GiB"
    with tempfile.TemporaryDirectory(prefix="mirage-many-") as folder:
        config = _config(Path(folder), bench.dry)
        limit_s = bench.share() - ENDING_S
        try:
            end = time.monotonic() + limit_s
            logs = ["--log-dir", str(OUTPUT / "many")]
            with serving(config, tied(MIRAGE), options=logs, ready_s=limit_s) as server:
                asked = list(_asked(server, end))
                bytes_asleep = _asleep_bytes(server)
        except SystemExit as error:
            words = str(error).strip().splitlines()
            yield Row("more models than fit", what, words[-1] if words else "ended", "", False)
            return
    yield from rows(what, asked, _layers_bytes(bench.dry), bytes_asleep)


def rows(what: str, asked: list[Asked], layers: int, asleep: dict[str, int]) -> list[Row]:
    """Rows on the first tokens by the state that a request found, and on the texts. `layers` is the
    bytes of one model's layers, `asleep` those that each sleeping tenant holds.
    """
    by_state: dict[str, list[float]] = {}
    texts: dict[str, set[str]] = {}
    for one in asked:
        by_state.setdefault(one.state, []).append(one.first_s)
        texts.setdefault(one.model, set()).add(one.text)
    wakes = by_state.get("sleeping", [])
    awake = by_state.get("ready", [])
    shown = "; ".join(
        f"{state}: {len(some)}, median {ms(median(some))} ({ms(min(some))} to {ms(max(some))})"
        for state, some in by_state.items()
    )
    held = ", ".join(f"{n / GIB:.3f} GiB" for n in asleep.values())
    different = sum(len(some) - 1 for some in texts.values())
    details = {"asked": [one._asdict() for one in asked], "layers": layers, "asleep": asleep}
    return [
        Row(
            "more models than fit, first token",
            f"{what}: to the first token, by the state that the request found",
            f"{shown}; {layers / GIB:.2f} GiB of layers; asleep a model holds {held or 'nothing'}",
            "requests of both states",
            bool(wakes and awake),
            details,
        ),
        Row(
            "more models than fit, texts",
            f"{what}: texts of a model that differ from its first one",
            str(different),
            "0",
            different == 0,
        ),
    ]


def _asked(server: ServedCommand, end: float) -> Iterator[Asked]:
    from mirage.serve.admin.client import AdminClient

    admin = AdminClient(server.socket)
    for _ in range(ROUNDS):
        for name in NAMES:
            for _ in range(ASKED):
                if time.monotonic() > end:
                    return
                state = admin.tenant(name).state
                first_s, text = _answered(server.url, name, max(1.0, end - time.monotonic()))
                yield Asked(name, str(state), first_s, text)


def _answered(url: str, name: str, limit_s: float) -> tuple[float, str]:
    """Seconds to the first token of one request, and its text. Raises `SystemExit` for an error."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=limit_s)
    body = {"model": name, "prompt": [*range(10, 74)], "max_tokens": TOKENS, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True}
    begun = time.monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), _JSON)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{name}: {answer.status} {answer.read()[:300]!r}")
        first_s, text = None, ""
        for line in answer:
            if line.startswith(b"data: {"):
                first_s = first_s or time.monotonic() - begun
                text += json.loads(line[6:])["choices"][0]["text"]
    except OSError as error:
        raise SystemExit(f"{name}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if first_s is None:
        raise SystemExit(f"{name}: an answer without a token")
    return first_s, text


_JSON = {"Content-Type": "application/json"}


def _asleep_bytes(server: ServedCommand) -> dict[str, int]:
    """Bytes of the device that each sleeping tenant holds."""
    from mirage.serve.admin.client import AdminClient

    told = (AdminClient(server.socket).tenant(name) for name in NAMES)
    return {one.name: one.asleep_bytes or 0 for one in told if one.state == "sleeping"}


def _config(folder: Path, dry: bool) -> Path:
    """Write the configuration of the three tenants, with the smallest possible shares; return its
    path.
    """
    import yaml

    device: dict[str, Any] = {"memory": MEMORY[dry]}
    device |= {"page": "64KiB"} if dry else {"kind": "cuda", **ON_GPU[GRAPHS]}
    tenants = [
        {
            "name": name,
            "model": str(model),
            "share": "auto",
            "max_wait_s": 600,
            "max_model_len": 330 if dry else 2048,
            "max_num_seqs": 8,
            "engine_args": {} if dry else {"load_format": "dummy"},
        }
        for name, model in zip(NAMES, _models(dry), strict=True)
    ]
    content = {"device": device, "dtype": "float32" if dry else "bfloat16", "block_tokens": 32}
    content |= {"roster": {"worth": 0}, "tenants": tenants}
    (path := folder / "config.yaml").write_text(yaml.safe_dump(content))
    return path


def _models(dry: bool) -> list[Path]:
    from benchmarks.gpu import dummies, small
    from mirage.tools.demo.models import make_models

    if dry:
        families = ("opt", "llama", "qwen3")
        return list(make_models(small.MODELS / "many-dry", which=families).values())
    return [dummies.hollow(small.MODELS / f"opt-13b-{name}") for name in NAMES]


def _layers_bytes(dry: bool) -> int:
    """Bytes of decoder layers of one model."""
    from benchmarks.gpu import dummies

    shape = dummies.OPT_13B
    return 0 if dry else shape.layers * 12 * shape.hidden**2 * dummies.BYTES["BF16"]
