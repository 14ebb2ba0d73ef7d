"""Families behind `mirage serve`, a few at a time: the same answers before and after a burst.

The burst of one tenant takes the memory of the others' layers; what each answers afterwards, with
those layers streamed or back, must be what it answered before.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from supervised import Served, serving

from tests.zoo import pictures
from tests.zoo.checking import PAGE_BYTES, tenant
from tests.zoo.family import Family

AT_ONCE = 4
START_S = 500
BURST = 16
"""Requests of 150 and more tokens at once: several times what a tenant's own KV cache holds."""
ROOM = 1.5
"""KV cache of a tenant's own, in parts of the least that it can start with."""

Facts = dict[str, Any]


def serve(
    families: Sequence[Family], models: Path, sizes: Mapping[str, Facts]
) -> Iterator[tuple[str, Facts]]:
    """Name and result of each family: `same`, true if the answers before and after the bursts are
    equal, and `given`, the most layers that were away in a burst; or `failed`, the error.

    `sizes` has the answers of `checking.check`. Tenants that stand beside each other in
    `families` are served apart, so that those without a KV cache have neighbours with one.
    """
    groups = -(-len(families) // AT_ONCE)
    for start in range(groups):
        some = families[start::groups]
        try:
            yield from _together(some, models, sizes)
        except Exception as error:
            for family in some:
                yield family.name, {"failed": f"{type(error).__name__}: {error}"[:300]}


def _together(
    families: Sequence[Family], models: Path, sizes: Mapping[str, Facts]
) -> list[tuple[str, Facts]]:
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory(prefix="mirage-http-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(_config(families, models, sizes)))
        with serving(path, fake=False, environment=environment, ready_timeout_s=START_S) as served:
            served.drain()
            before = {f.name: _answer(served, f) for f in families}
            given = {f.name: _burst(served, f) for f in families}
            after = {f.name: _answer(served, f) for f in families}
    most = {f.name: max(each[f.name] for each in given.values()) for f in families}
    return [(n, {"same": before[n] == after[n], "given": most[n]}) for n in before]


def _config(families: Sequence[Family], models: Path, sizes: Mapping[str, Facts]) -> Facts:
    """Configuration of a device on which each tenant has its own memory and hardly more."""
    needs = {family.name: _need(sizes[family.name]) for family in families}
    device = {"memory": sum(needs.values()), "page": PAGE_BYTES}
    # A little less than all, or rounding makes it more.
    shares = {name: 99.99 * need / device["memory"] for name, need in needs.items()}
    tenants = [
        tenant(f, models, shares[f.name]).model_dump(mode="json", exclude_unset=True)
        for f in families
    ]
    return {"device": device, "tenants": tenants}


def _need(size: Facts) -> int:
    kv = math.ceil(ROOM * size["min_extents"]) * size["extent_bytes"]
    layers = size["layers"] * size["layer_bytes"]
    return int(-(-(size["fixed_bytes"] + layers + kv) // PAGE_BYTES) + 1) * PAGE_BYTES


def _answer(served: Served, family: Family, text: str = "hello", tokens: int = 16) -> Any:
    """Texts, vectors, or scores of an answer. Raises `RuntimeError` for a status other than 200."""
    body: dict[str, Any] = {"model": family.name}
    if family.task == "generate":
        path, wanted = "/v1/completions", "choices"
        body |= {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True, "prompt": text}
        if family.name in pictures.PROCESSORS:
            path = "/v1/chat/completions"
            body |= {"messages": pictures.chat(body.pop("prompt"))}
    elif family.task == "embed":
        path, wanted = "/v1/embeddings", "data"
        body["input"] = [text, f"{text} again"]
    else:
        path, wanted = "/score", "data"
        text = text[:100]  # both of a pair have to fit
        body |= {"text_1": text, "text_2": [f"{text} again", "something else"]}
    status, said = served.request("POST", path, body)
    if status != 200:
        raise RuntimeError(f"{family.name}: status {status}: {said}")
    # Most tokens of random weights are no text.
    return said[wanted][0]["token_ids"] if wanted == "choices" else said[wanted]


def _burst(served: Served, family: Family) -> dict[str, int]:
    """Send many long requests at once; returns the most layers of each tenant that were away
    meanwhile.
    """
    texts = [chr(65 + i) * 150 for i in range(BURST)]
    with ThreadPoolExecutor(BURST) as pool:
        list(pool.map(lambda text: _answer(served, family, text, 90), texts))
    samples = served.timeline()["samples"]
    names = samples[-1]["tenants"]
    return {
        n: max(s["tenants"][n]["layers_remapped"] for s in samples if n in s["tenants"])
        for n in names
    }
