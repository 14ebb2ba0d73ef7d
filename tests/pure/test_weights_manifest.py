"""Manifests of weights: other content has another id, and a contradictory manifest is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.weights.manifest import (
    MOST_CHUNK_BYTES,
    MOST_CHUNKS,
    ContentFile,
    ManifestRefused,
    WeightsManifest,
    decoded,
    manifest_of,
)

pytestmark = pytest.mark.pure

CHUNK = 4


def content(path: str, data: bytes) -> ContentFile:
    chunks = [data[n : n + CHUNK] for n in range(0, len(data), CHUNK)]
    hashes = tuple(hashlib.sha256(chunk).hexdigest() for chunk in chunks)
    return ContentFile(path, len(data), hashlib.sha256(data).hexdigest(), hashes)


FILES = (content("a.bin", b"12345"), content("b/c.json", b"{}"), content("b/d", b""))


def manifest() -> WeightsManifest:
    return manifest_of(FILES, CHUNK)


def test_an_id_does_not_depend_on_the_order_in_which_files_were_found() -> None:
    assert manifest_of(reversed(FILES), CHUNK).id == manifest().id
    assert decoded(manifest().encoded, manifest().id) == manifest()


@given(st.sampled_from(range(3)), st.binary(max_size=9))
def test_another_content_or_path_is_another_id(which: int, data: bytes) -> None:
    files = list(FILES)
    files[which] = content(files[which].path, data)
    same = data == [b"12345", b"{}", b""][which]
    assert (manifest_of(files, CHUNK).id == manifest().id) is same
    renamed = msgspec.structs.replace(FILES[which], path="x")
    assert manifest_of([*FILES[:which], *FILES[which + 1 :], renamed], CHUNK).id != manifest().id


def test_a_content_that_two_files_have_is_counted_once() -> None:
    twice = manifest_of([content("a", b"12345"), content("b", b"12345")], CHUNK)
    assert (len(twice.contents), twice.bytes) == (1, 5)
    (file,) = twice.contents.values()
    assert [twice.span(file, n) for n in range(2)] == [(0, 4), (4, 5)]


@pytest.mark.parametrize(
    "path",
    [
        *("/a", "../a", "a/../b", "a//b", "", ".hidden", "a/.git/b", "a\nb", "a\0b", "a/"),
        *("x" * 256, "/".join("abcdefghi")),
    ],
)
def test_no_path_leads_out_of_a_model(path: str) -> None:
    with pytest.raises(ManifestRefused, match="no path of a model"):
        manifest_of([content(path, b"1")], CHUNK)


def test_a_file_that_is_a_folder_too_is_refused() -> None:
    with pytest.raises(ManifestRefused, match="'a/b' is a file and a folder"):
        manifest_of([content("a/b", b"1"), content("a/b/c", b"2")], CHUNK)


def damaged(change: dict[str, Any]) -> bytes:
    """Encoded manifest whose first file has the keys of `change` replaced."""
    raw = msgspec.json.decode(manifest().encoded)
    raw["files"][0] |= change
    return msgspec.json.encode(raw)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 9}, "2 chunks are not its size"),
        ({"size": -1}, "no manifest"),
        ({"sha256": "A" * 64}, "no manifest"),
        ({"sha256": "a" * 64 + "\n"}, "no manifest"),
        ({"more": 1}, "no manifest"),
        ({"path": "z"}, "not in the order"),
        ({"sha256": FILES[1].sha256}, "one hash, and two contents"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: dict[str, Any], words: str) -> None:
    data = damaged(change)
    try:
        wanted = msgspec.json.decode(data, type=WeightsManifest).id
    except msgspec.DecodeError:
        wanted = "0" * 64
    with pytest.raises(ManifestRefused, match=words):
        decoded(data, wanted)


def test_another_manifest_than_was_asked_for_is_refused() -> None:
    with pytest.raises(ManifestRefused, match="the manifest that came is"):
        decoded(damaged({"sha256": "b" * 64}), manifest().id)
    for data in (b"", b"{", b"[]", b"\xff"):
        with pytest.raises(ManifestRefused, match="no manifest"):
            decoded(data, manifest().id)


def test_chunks_fit_into_memory_and_are_not_too_many() -> None:
    with pytest.raises(ManifestRefused, match="no manifest"):
        raw = msgspec.json.decode(manifest().encoded) | {"chunk_bytes": MOST_CHUNK_BYTES + 1}
        decoded(msgspec.json.encode(raw), manifest().id)
    digest = "0" * 64
    many = ContentFile("a", MOST_CHUNKS + 1, digest, (digest,) * (MOST_CHUNKS + 1))
    with pytest.raises(ManifestRefused, match="131,073 chunks, at most 131,072: make them larger"):
        manifest_of([many], 1)
