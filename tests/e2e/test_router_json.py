"""Bodies that are no JSON, or odd JSON: one answer for each, however long the body is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_router import Site, run

from mirage.serve.access.rates import NO_BOUNDS, BodyBounds
from mirage.serve.router.reading import AT_ONCE_BYTES

pytestmark = pytest.mark.e2e

LENGTHS = (0, 70_000, AT_ONCE_BYTES + 1)
"""Numbers of bytes that are added to a body; bodies with the last number are parsed outside the
event loop's thread.
"""
DEEP = 400
ODD: dict[str, tuple[int, bytes, str]] = {
    "half a pair, escaped": (400, b'{"model": "a", "p": "\\ud83d"@}', "half of a surrogate pair"),
    "half a pair, in a key": (400, b'{"model": "a", "\\ud83d": 1@}', "half of a surrogate pair"),
    "half a pair, in the model": (400, b'{"model": "\\ud83d"@}', "half of a surrogate pair"),
    "the second half alone": (400, b'{"model": "a", "p": "\\ude00"@}', "half of a surrogate pair"),
    "half a pair as bytes": (400, b'{"model": "a", "p": "\xed\xa0\xbd"@}', "it is not UTF-8"),
    "both halves": (200, b'{"model": "a", "p": "\\ud83d\\ude00"@}', ""),
    "NaN": (400, b'{"model": "a", "p": NaN@}', "NaN at byte "),
    "Infinity": (400, b'{"model": "a", "p": Infinity@}', "Infinity at byte "),
    "-Infinity": (400, b'{"model": "a", "p": [-Infinity]@}', "-Infinity at byte "),
    "a number beyond all": (200, b'{"model": "a", "p": 1e999@}', ""),
    "bytes that are no UTF-8": (400, b'{"model": "a", "p": "\xff"@}', "it is not UTF-8"),
    "Latin 1": (400, b'{"model": "a", "p": "\xe9t\xe9"@}', "it is not UTF-8"),
    "a mark of the byte order": (200, b'\xef\xbb\xbf{"model": "a"@}', ""),
    "two marks": (400, b'\xef\xbb\xbf\xef\xbb\xbf{"model": "a"@}', "the body is not JSON"),
    "the same key twice": (200, b'{"p": 1, "p": 2, "model": "a"@}', ""),
    "two models, the first none": (200, b'{"model": "none", "model": "a"@}', ""),
    "two models, the second none": (404, b'{"model": "a", "model": "none"@}', "no model 'none'"),
    "deep": (200, b'{"model": "a", "p": ' + b"[" * DEEP + b"]" * DEEP + b"@}", ""),
    "too deep": (400, b'{"model": "a", "p": ' + b"[" * 5000 + b"]" * 5000 + b"@}", "too deeply"),
    "a control character": (400, b'{"model": "a", "p": "a\nb"@}', "invalid character"),
    "a comma too many": (400, b'{"model": "a",@,}', "the body is not JSON"),
    "more behind it": (400, b'{"model": "a"@} x', "trailing characters"),
    "it ends early": (400, b'{"model": "a"@', "it ends too early"),
    "single quotes": (400, b"{'model': 'a'@}", "the body is not JSON"),
    "no object": (400, b'["a"@]', "not a JSON object"),
}


async def told(site: Site, body: bytes) -> tuple[int, str]:
    async with site.post(body) as answer:
        found: dict[str, Any] = await answer.json()
    return answer.status, found.get("error", {}).get("message", "")


@pytest.mark.parametrize("what", ODD)
def test_a_body_has_one_answer_however_long_it_is(tmp_path: Path, what: str) -> None:
    status, template, words = ODD[what]
    key = b'"more": ' if template.lstrip(b"\xef\xbb\xbf").startswith(b"{") else b""

    async def scenario(site: Site) -> None:
        for more in LENGTHS:
            filled = b", " + key + b'"' + b"x" * more + b'"' if more else b""
            found, message = await told(site, template.replace(b"@", filled))
            assert (found, words in message) == (status, True), (more, found, message)
        assert len(site.a.seen) == (len(LENGTHS) if status == 200 else 0)

    run(tmp_path, scenario)


def test_one_depth_is_too_deep_at_every_length(tmp_path: Path) -> None:
    """Bodies nest so many lists that from one depth on they are refused. The depth is the same for
    all lengths and with bounds, although such bodies are read in different threads with different
    stacks.
    """

    async def scenario(site: Site) -> None:
        async def status(depth: int, more: int) -> int:
            nested = b"[" * depth + b"]" * depth
            filled = b', "more": "' + b"x" * more + b'"' if more else b""
            return (await told(site, b'{"model": "a", "p": ' + nested + filled + b"}"))[0]

        for bounds in (NO_BOUNDS, BodyBounds(max_tokens=5)):
            site.registry.backends["a"].bounds = bounds
            await site.seen()
            found = [[await status(depth, n) for depth in range(900, 1000)] for n in LENGTHS]
            assert found == [found[0]] * len(LENGTHS)
            assert sorted(set(found[0])) == [200, 400]

    run(tmp_path, scenario)
