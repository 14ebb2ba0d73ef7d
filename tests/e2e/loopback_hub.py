"""A hub of models on loopback that speaks the protocol of huggingface_hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Asked(NamedTuple):
    """One request that the hub got."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class HubRevision(NamedTuple):
    """Commit of a repository and its files."""

    commit: str
    files: dict[str, bytes]


def is_large(path: str) -> bool:
    """True for a file that the hub stores outside the repository, at another address."""
    return path.endswith((".safetensors", ".bin", ".model"))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class LoopbackHub(ThreadingHTTPServer):
    """The hub: repositories by name, and settings of what it does wrong."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories: dict[str, dict[str, HubRevision]] = {}
        self.tokens: set[str] = set()
        """Tokens that are valid. Only gated and private repositories need one; any other token is
        refused everywhere.
        """
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.asked: list[Asked] = []
        self.ends_after: int | None = None
        """Bytes of a large file after which each answer is cut; None: none is."""
        self.status: int | None = None
        """HTTP status with which every request is refused; None: requests are answered."""
        self.lies: dict[str, bytes] = {}
        """Content that is sent in place of a file's own, by path; sizes and hashes are told of the
        file's own.
        """
        self.claims: dict[str, int] = {}
        """Sizes that the hub tells in place of files' own, by path."""
        self.go_on = threading.Event()
        """Set while a connection is closed as soon as its answer is cut; cleared, it stays open for
        up to 60 s.
        """
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: dict[str, bytes] | Path, revision: str = "main") -> str:
        """Add a revision, and return its commit."""
        if isinstance(files, Path):
            paths = (path for path in sorted(files.rglob("*")) if path.is_file())
            files = {str(path.relative_to(files)): path.read_bytes() for path in paths}
        told = "".join(f"{path} {sha256(content)}\n" for path, content in files.items())
        commit = hashlib.sha1(f"{name}\n{told}".encode()).hexdigest()
        one = HubRevision(commit, files)
        self.repositories.setdefault(name, {}).update({revision: one, commit: one})
        return commit

    def fetched(self) -> list[str]:
        """Names of the files that were requested, by HEAD or GET, in order."""
        return [one.path.rpartition("/")[2] for one in self.asked if "/resolve/" in one.path]


class HubHandler(BaseHTTPRequestHandler):
    """Answers as huggingface.co does to clients that read models."""

    server: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = Asked(self.command, path, self.headers["Range"], self.headers["Authorization"])
        self.server.asked.append(asked)
        if self.server.status is not None:
            self._refuse(self.server.status, "", "Service unavailable")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            self._tell(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._give(*found.groups())
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", path):
            one = self.server.repositories[found[1]][found[2]]  # who has the address may have it
            self._send(self.server.lies.get(found[3], one.files[found[3]]), cut=True)
        else:
            self._refuse(404, "", "Not Found")

    def _revision(self, name: str, revision: str, *, files: bool) -> HubRevision | None:
        """The revision that the client asks for; None if an error was answered instead."""
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        known = token in self.server.tokens
        if token and not known:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif name not in self.server.repositories or (name in self.server.private and not known):
            self._refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        elif files and name in self.server.gated and not known:
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif revision not in self.server.repositories[name]:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return self.server.repositories[name][revision]
        return None

    def _tell(self, name: str, kind: str, revision: str) -> None:
        if (one := self._revision(name, revision, files=False)) is None:
            return
        if kind == "tree":
            self._json([self._entry(path, content) for path, content in one.files.items()])
            return
        files = [self._sibling(path, content) for path, content in one.files.items()]
        self._json({"id": name, "modelId": name, "sha": one.commit, "siblings": files})

    def _sibling(self, path: str, content: bytes) -> dict[str, Any]:
        size = self.server.claims.get(path, len(content))
        told = {"rfilename": path, "size": size, "blobId": blob_id(content)}
        if is_large(path):
            told["lfs"] = {"sha256": sha256(content), "size": size, "pointerSize": 134}
        return told

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        told = {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
        if is_large(path):
            told["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        return told

    def _give(self, name: str, revision: str, path: str) -> None:
        if (one := self._revision(name, revision, files=True)) is None:
            return
        if (content := one.files.get(path)) is None:
            self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": one.commit})
            return
        commit = {"X-Repo-Commit": one.commit}
        if not is_large(path):
            etag = {"ETag": f'"{blob_id(content)}"'}
            self._send(self.server.lies.get(path, content), commit | etag)
            return
        # As at the real one, the content has another host: another name of this machine.
        place = f"http://localhost:{self.server.server_port}/cdn/{name}/{one.commit}/{path}"
        linked = {"X-Linked-Etag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content))}
        self._head(302, 0, commit | linked | {"Location": place})

    def _send(
        self, content: bytes, headers: dict[str, str] | None = None, cut: bool = False
    ) -> None:
        status, more = 200, dict(headers or {})
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or ""):
            begin, total = int(found[1]), len(content)
            if begin >= total:
                self._head(416, 0, {"Content-Range": f"bytes */{total}"})
                return
            content = content[begin : int(found[2]) + 1 if found[2] else None]
            status = 206
            more["Content-Range"] = f"bytes {begin}-{begin + len(content) - 1}/{total}"
        self._head(status, len(content), more)
        if self.command == "HEAD":
            return
        most = self.server.ends_after if cut else None
        self.wfile.write(content[:most])
        if most is not None and most < len(content):
            self.wfile.flush()
            self.close_connection = True
            self.server.go_on.wait(60)

    def _json(self, told: Any) -> None:
        self._send(json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _refuse(
        self, status: int, kind: str, words: str, headers: dict[str, str] | None = None
    ) -> None:
        told = {"X-Error-Message": words, **({"X-Error-Code": kind} if kind else {})}
        self._head(status, 0, told | (headers or {}))

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """Run a hub while the block runs."""
    with LoopbackHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            hub.shutdown()
            thread.join()
