"""Families behind `mirage serve`, a few at a time: the same answers before and after a burst.

The burst of one tenant takes the memory of the others' layers; what each answers afterwards, with
those layers streamed or back, must be what it answered before.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from supervised import Served, serving

from tests.zoo.checking import OURS
from tests.zoo.family import Family

AT_ONCE = 4
DEVICE = "160MiB"
START_S = 500
BURST = 16
"""Requests of 150 and more tokens at once."""


def serve(families: Sequence[Family], models: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each family `same` and the most layers given meanwhile, or `failed`."""
    for start in range(0, len(families), AT_ONCE):
        some = families[start : start + AT_ONCE]
        try:
            yield from _together(some, models)
        except Exception as error:
            for family in some:
                yield family.name, {"failed": f"{type(error).__name__}: {error}"[-300:]}


def _together(families: Sequence[Family], models: Path) -> list[tuple[str, dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="mirage-http-") as folder:
        path = Path(folder) / "config.yaml"
        tenants = [_tenant(family, models) for family in families]
        path.write_text(yaml.safe_dump({"device": {"memory": DEVICE}, "tenants": tenants}))
        with serving(path, fake=False, ready_timeout_s=START_S) as served:
            served.drain()
            before = {f.name: _answer(served, f) for f in families}
            given = {f.name: _burst(served, f) for f in families}
            after = {f.name: _answer(served, f) for f in families}
    most = {f.name: max(each[f.name] for each in given.values()) for f in families}
    return [(n, {"same": before[n] == after[n], "given": most[n]}) for n in before]


def _tenant(family: Family, models: Path) -> dict[str, Any]:
    return {
        "name": family.name,
        "model": str((models / family.name).resolve()),
        "share": 100 // AT_ONCE,
        "max_model_len": 256,
        "max_num_batched_tokens": 256,
        "max_num_seqs": BURST,
        "engine_args": {k: v for k, v in family.arguments.items() if k not in OURS},
    }


def _answer(served: Served, family: Family, text: str = "hello", tokens: int = 16) -> Any:
    """Texts, or vectors, or scores. Raises `RuntimeError` for any other status than 200."""
    body: dict[str, Any] = {"model": family.name}
    if family.task == "generate":
        path = "/v1/completions"
        body |= {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body["return_token_ids"] = True
        wanted = "choices"
    elif family.task == "embed":
        path, wanted = "/v1/embeddings", "data"
        body["input"] = [text, f"{text} again"]
    else:
        path, wanted = "/score", "data"
        body |= {"text_1": text, "text_2": [f"{text} again", "something else"]}
    status, said = served.request("POST", path, body)
    if status != 200:
        raise RuntimeError(f"{family.name}: status {status}: {said}")
    # Most tokens of random weights are no text.
    return said[wanted][0]["token_ids"] if wanted == "choices" else said[wanted]


def _burst(served: Served, family: Family) -> dict[str, int]:
    """Many long requests at once; the most layers of each tenant that were away meanwhile."""
    texts = [chr(65 + i) * 150 for i in range(BURST)]
    with ThreadPoolExecutor(BURST) as pool:
        list(pool.map(lambda text: _answer(served, family, text, 90), texts))
    samples = served.request("GET", "/mirage/timeline")[1]["samples"]
    names = samples[-1]["tenants"]
    return {n: max(s["tenants"][n]["alpha"] for s in samples if n in s["tenants"]) for n in names}
