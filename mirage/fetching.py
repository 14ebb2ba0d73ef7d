"""Fetching one file over HTTP: afterwards it is complete and its checksum is right, or it is
absent.

Bytes go into ``FILE.part`` beside the file, which is renamed after its checksum was verified. An
interrupted fetch continues where it ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from mirage.errors import CommandFailed

CHUNK = 1024 * 1024
UNREACHABLE = urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, SSLError
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416
NO_HEADERS: Mapping[str, str] = {}

Progress = Callable[[int, int | None], None]
"""Callback with the bytes received so far, and the total or None if that is unknown."""


class WantedFile(NamedTuple):
    """A file to fetch: its name, its checksum, and its size in bytes if that is known."""

    name: str
    checksum: str
    """Checksum with its kind in front: ``sha256:...``, or ``git:...`` of an object in a
    repository.
    """
    bytes: int | None = None


class FetchError(CommandFailed):
    """Error: a file could not be fetched; the message is one line."""


class UnreachableError(FetchError):
    """Error: no server returned the file; its cause is the last server's error."""


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirects; to another host or scheme, without the ``Authorization``
    header."""

    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            request.remove_header("Authorization")
        return request


_opener = urllib.request.build_opener(_SameHost)


def opened(url: str, headers: Mapping[str, str], timeout_s: float) -> Any:
    """Response to a GET of `url`. Raises one of `UNREACHABLE`."""
    request = urllib.request.Request(url, headers={"User-Agent": "mirage", **headers})
    return _opener.open(request, timeout=timeout_s)


def fetch(
    wanted: WantedFile,
    path: Path,
    urls: list[str],
    progress: Progress,
    timeout_s: float,
    headers: Mapping[str, str] = NO_HEADERS,
) -> None:
    """Get the file to `path` from the first of `urls` that returns it, by requests with these
    `headers`.

    Raises `UnreachableError` if none does; what came so far is kept in ``FILE.part``. Raises
    `FetchError` if another process fetches the file, or if the checksum is wrong: then nothing is
    kept. Raises `OSError` if the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with _locked(part) as file:
        try:
            _from_first(urls, wanted, file, progress, timeout_s, headers)
        except UnreachableError:
            if not part.stat().st_size:
                part.unlink()
            raise
        found = checksum_like(wanted.checksum, part)
        if found != wanted.checksum:
            part.unlink()
            raise FetchError(
                f"{wanted.name}: what came has {found}, not {wanted.checksum}: nothing was kept; "
                "fetch it again, and if that is so again the file has changed"
            )
        part.replace(path)


def checksum_like(known: str, path: Path) -> str:
    """Checksum of a file, of the same kind as `known`. Raises `OSError` if it cannot be read."""
    if known.startswith("sha256:"):
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
    """``FILE.part``, opened to append and locked for this process. Raises `FetchError` if it is
    locked.
    """
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(f"{part}: another process fetches it: wait for that one") from None
        yield file


def _from_first(
    urls: list[str],
    wanted: WantedFile,
    file: IO[bytes],
    progress: Progress,
    timeout_s: float,
    headers: Mapping[str, str],
) -> None:
    reasons, last = [], None
    for url in urls:
        try:
            _from(url, wanted, file, progress, timeout_s, headers)
        except UNREACHABLE as error:
            reasons.append(f"{url}: {reason(error)}")
            last = error
        else:
            return
    raise UnreachableError("; ".join(reasons)) from last


def _from(
    url: str,
    wanted: WantedFile,
    file: IO[bytes],
    progress: Progress,
    timeout_s: float,
    headers: Mapping[str, str],
) -> None:
    """Append the rest of `url` to `file`. What came before a connection breaks stays in it."""
    have = file.tell()
    if wanted.bytes is not None and have >= wanted.bytes:
        return
    asked = {**headers, "Range": f"bytes={have}-"} if have else headers
    try:
        response = opened(url, asked, timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_NOT_SATISFIABLE and have:
            error.close()
            return  # nothing is missing, or the checksum will say so
        raise
    with response:
        if response.status != PARTIAL_CONTENT:
            file.truncate(0)
        _copy(response, wanted, file, progress)


def _copy(response: Any, wanted: WantedFile, file: IO[bytes], progress: Progress) -> None:
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


def reason(error: BaseException) -> str:
    """Reason of an `UNREACHABLE` error, in words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(inner).split()) or type(error).__name__
