"""Compressed request bodies: unpacked within bounds, or refused."""

import gzip
import zlib

import pytest

from mirage.serve.api.openai import ApiError
from mirage.serve.http.unpack import unpacked

pytestmark = pytest.mark.pure


def refused(body: bytes, encoding: str = "gzip", most: int = 1000) -> tuple[int, str]:
    with pytest.raises(ApiError) as raised:
        unpacked(body, encoding, most)
    return raised.value.status, raised.value.message


def test_what_is_not_compressed_is_left_alone() -> None:
    assert unpacked(b"x", "", 1) == unpacked(b"x", "Identity", 1) == b"x"


def test_members_behind_each_other_are_one_body() -> None:
    assert unpacked(gzip.compress(b"ab") + gzip.compress(b"c"), "GZip", 3) == b"abc"
    assert refused(gzip.compress(b"ab") + gzip.compress(b"c"), most=2)[0] == 413
    assert refused(gzip.compress(b"") * 101) == (
        400,
        "the body cannot be read as gzip: it has more than 100 members",
    )


def test_exactly_the_most_is_allowed() -> None:
    assert unpacked(zlib.compress(bytes(1000)), "deflate", 1000) == bytes(1000)
    assert refused(zlib.compress(bytes(1001)), "deflate")[0] == 413


def test_the_limit_is_named_whichever_member_exceeds_it() -> None:
    body = gzip.compress(bytes(2**20)) + gzip.compress(bytes(2**21))
    assert refused(body, most=2**21) == (413, "the body is larger than 2.0 MiB: send less")


@pytest.mark.parametrize("body", [b"nonsense", gzip.compress(b"whole", mtime=0)[:-3], b"\x1f"])
def test_what_is_torn_is_a_400(body: bytes) -> None:
    status, message = refused(body)
    assert status == 400
    assert message.startswith("the body cannot be read as gzip: ")
