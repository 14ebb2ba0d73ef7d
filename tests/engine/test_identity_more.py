"""Bit-identity for models that vLLM builds through transformers, and for quantised ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn
from tiny import make_model
from unusual import OFFSET, TRANSFORMERS

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.one_of("rounding")]

STAYS = OFFSET
MODES = {
    "plain": (*TRANSFORMERS, STAYS),
    "mirage": (*TRANSFORMERS, STAYS),
    "mirage-pieces": TRANSFORMERS,
    "slow": TRANSFORMERS[:1],
    "nowait": TRANSFORMERS[:1],
}
AT_ONCE = 2

Generated = dict[str, Future[dict[str, Any]]]


def asked(request: pytest.FixtureRequest) -> set[str]:
    """Families of the selected tests, and those that always run."""
    mine = [item for item in request.session.items if item.path == request.path]
    drawn = {item.callspec.params["family"] for item in mine if hasattr(item, "callspec")}
    return {STAYS, TRANSFORMERS[0], *drawn}


@pytest.fixture(scope="module")
def generated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generated]:
    """Futures of the results of each mode, by family."""
    models, chosen = tmp_path_factory.mktemp("models"), asked(request)
    families = {mode: [f for f in given if f in chosen] for mode, given in MODES.items()}
    for family in families["plain"]:
        make_model(family, models)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {mode: pool.submit(_generate, models, mode, families[mode]) for mode in MODES}
        pool.shutdown(cancel_futures=True)


def _generate(models: Path, mode: str, families: list[str]) -> dict[str, Any]:
    out = models / f"{mode}.json"
    must(spawn("identity.py", models, out, mode, *families))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.drawn("family", together="models of transformers")
@pytest.mark.parametrize("mode", ["mirage", "mirage-pieces"])
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_models_of_transformers_give_the_same_while_their_layers_move(
    family: str, mode: str, generated: Generated
) -> None:
    plain, ours = generated["plain"].result()[family], generated[mode].result()[family]
    assert ours["rounds"] == plain["rounds"]
    assert (
        len(ours["remapped_counts"]) >= 4
        and max(ours["remapped_counts"]) >= 5
        and {1, 2} <= set(ours["slot_counts"])
    )
    assert ours["grown"] >= 3 and ours["shrunk"] >= 3
    assert ours["bytes_streamed"] > 0 and ours["hits"] == plain["hits"] > 0
    assert ours["pieces"] == (mode == "mirage-pieces")


def test_int8_layers_stay_and_their_kv_cache_moves(generated: Generated) -> None:
    """oneDNN keeps int8 weights and the addresses of their scales, so layers of such a model do not
    move. Its KV memory does, and the text is plain vLLM's.
    """
    plain, ours = generated["plain"].result()[STAYS], generated["mirage"].result()[STAYS]
    assert ours["rounds"] == plain["rounds"]
    assert ours["movable"] == 0 and ours["remapped_counts"] == [0] and ours["bytes_streamed"] == 0
    assert ours["grown"] >= 3 and ours["shrunk"] >= 3
    assert ours["hits"] == plain["hits"] > 0


def test_a_slow_link_changes_no_output_and_without_waits_it_does(generated: Generated) -> None:
    family = TRANSFORMERS[0]
    plain = generated["plain"].result()[family]["rounds"][:1]
    assert generated["slow"].result()[family]["rounds"] == plain
    assert generated["nowait"].result()[family]["rounds"] != plain
