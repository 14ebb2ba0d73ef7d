"""Fetching one file: whole and right, or not there.

Bytes go into ``FILE.part`` beside the file, which gets its name only after its checksum was found
right. A fetch that was interrupted goes on where it ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import IO, Any

from mirage.errors import CommandFailed
from mirage.workload.public import Public

CHUNK = 1024 * 1024
UNREACHABLE = urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, SSLError
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416

Progress = Callable[[int, int | None], None]
"""Told of the bytes that are there and of those there will be, if that is known."""


class FetchError(CommandFailed):
    """A file that could not be had; the message is one line."""


class UnreachableError(FetchError):
    """No server gave the file."""


def fetch(
    wanted: Public, path: Path, urls: list[str], progress: Progress, timeout_s: float
) -> None:
    """Get the file to `path` from the first address that gives it.

    Raises `UnreachableError` if none does, `FetchError` if another process fetches it, or what
    came is not the file: then nothing of it is kept. Raises `OSError` for a folder that cannot be
    written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with _locked(part) as file:
        try:
            _from_first(urls, wanted, file, progress, timeout_s)
        except UnreachableError:
            if not part.stat().st_size:
                part.unlink()
            raise
        found = checksum(wanted, part)
        if found != wanted.checksum:
            part.unlink()
            raise FetchError(
                f"{path.name}: what came has {found}, not {wanted.checksum}: nothing was kept; "
                "fetch it again, and if that is so again the file has changed"
            )
        part.replace(path)


def checksum(wanted: Public, path: Path) -> str:
    """Checksum of a file, of the kind that is known for it. Raises `OSError`."""
    if wanted.sha256:
        return f"sha256:{_digest(hashlib.sha256(), path)}"
    header = f"blob {path.stat().st_size}\0".encode()
    return f"git:{_digest(hashlib.sha1(header, usedforsecurity=False), path)}"


def _digest(digest: Any, path: Path) -> str:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return str(digest.hexdigest())


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """The file of what has come so far, for this process alone."""
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(f"{part}: another process fetches it: wait for that one") from None
        yield file


def _from_first(
    urls: list[str], wanted: Public, file: IO[bytes], progress: Progress, timeout_s: float
) -> None:
    reasons = []
    for url in urls:
        try:
            _from(url, wanted, file, progress, timeout_s)
        except UNREACHABLE as error:
            reasons.append(f"{url}: {_reason(error)}")
        else:
            return
    raise UnreachableError("; ".join(reasons))


def _from(url: str, wanted: Public, file: IO[bytes], progress: Progress, timeout_s: float) -> None:
    """Bring `file` to its end. What came before a connection breaks stays in it."""
    have = file.tell()
    if wanted.bytes is not None and have >= wanted.bytes:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "mirage"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_NOT_SATISFIABLE and have:
            error.close()
            return  # nothing is missing, or the checksum will say so
        raise
    with response:
        if response.status != PARTIAL_CONTENT:
            file.truncate(0)
        _copy(response, wanted, file, progress)


def _copy(response: Any, wanted: Public, file: IO[bytes], progress: Progress) -> None:
    have = os.fstat(file.fileno()).st_size
    coming = response.headers.get("Content-Length", "")
    total = wanted.bytes or (have + int(coming) if coming.isdigit() else None)
    while chunk := response.read1(CHUNK):
        have += len(chunk)
        if wanted.bytes is not None and have > wanted.bytes:
            raise urllib.error.URLError(f"more came than the {wanted.bytes:,} bytes of the file")
        file.write(chunk)
        file.flush()
        progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke after {have:,} of {total:,} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(inner).split()) or type(error).__name__
