"""vLLM's prefix cache finds exactly what a trace says that prompts share."""

from __future__ import annotations

import json

import pytest
from children import must, spawn
from tiny import BLOCK_TOKENS

pytestmark = pytest.mark.engine

HASHES = [[1, 2, 3, 4], [1, 2, 3, 9], [1, 2, 7, 8], [5, 6, 7, 8], [1, 2, 3, 4, 11], [1, 2, 3]]
LENGTHS = [2048, 2048, 2000, 2048, 2500, 1536]
TALKS = (
    "kind: synthetic\nrate: 2\nrequests: 16\nseed: 4\n"
    "shape: {prompt_mean: 40, prompt_sigma: 0.5, output_mean: 10, output_sigma: 0.3}\n"
    "sessions: {turns: 4, think_s: 1}\nprefixes: {count: 1, tokens: 96}\n"
)
Row = tuple[int, int, str | None, int, int]
"""Tokens of a prompt, those that were cached, and its session; then as the engine reports them,
blocks that were taken again, and that are cached while nobody has them."""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    """Results for a trace with hashes of 512 tokens, at an eighth of its lengths, and for one with
    sessions.
    """
    folder = tmp_path_factory.mktemp("shared")
    hashed, talks = folder / "hashed.jsonl", folder / "talks.yaml"
    rows = [
        {"timestamp": n, "input_length": length, "output_length": 16, "hash_ids": hashes}
        for n, (length, hashes) in enumerate(zip(LENGTHS, HASHES, strict=True))
    ]
    hashed.write_text("\n".join(map(json.dumps, rows)))
    talks.write_text(TALKS)
    said = must(spawn("shared_prefixes.py", folder, hashed, 1 / 8, talks, 1.0))
    return [[tuple(row) for row in each] for each in json.loads(said.splitlines()[-1])]


def blocks(tokens: int) -> int:
    """Number of tokens in the whole blocks of `tokens` tokens."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.slow
def test_prompts_with_the_same_hashes_hit_the_cache(replayed: list[list[Row]]) -> None:
    found = replayed[0]
    assert [size for size, *_ in found] == [length // 8 for length in LENGTHS]
    # vLLM computes the last token of a prompt anew, and with it its block.
    whole = blocks(LENGTHS[-1] // 8 - 1)
    assert [cached for _, cached, *_ in found] == [0, 192, 128, 0, 256, whole]


def test_turns_of_a_session_hit_the_prompts_before_them(replayed: list[list[Row]]) -> None:
    before: dict[str | None, int] = {}
    for number, (size, cached, session, _, _) in enumerate(replayed[1]):
        shared = max(96, before.get(session, 0)) if number else 0
        assert cached == blocks(min(shared, size - 1)), (number, size, session)
        before[session] = size
    assert len(before) > 2 and max(before.values()) > 200


def test_engines_report_what_was_taken_again(replayed: list[list[Row]]) -> None:
    """Requests run one after the other, so cached blocks are idle when the next one finds them. The
    engine's report counts them.
    """
    again = 0
    for _, cached, _, reported, _ in [*replayed[0], *replayed[1]]:
        again += cached // BLOCK_TOKENS
        assert reported == again
    assert again > 50


def test_engines_report_what_is_cached(replayed: list[list[Row]]) -> None:
    first, second = (idle for *_, idle in replayed[0][:2])
    # Two tokens come out, and the last one has no KV.
    assert first == (LENGTHS[0] // 8 + 1) // BLOCK_TOKENS
    new = LENGTHS[1] // 8 + 1 - replayed[0][1][1]
    assert second == first + new // BLOCK_TOKENS
