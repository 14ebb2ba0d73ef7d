"""Media that vLLM fetches for a request, under the command line and environment of a tenant."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image
from vllm.multimodal.media import MediaConnector

from mirage.config import Config
from mirage.engine.arguments import parse
from mirage.serve.launch.launcher import CAREFUL, NO_DOMAIN, arguments_of

pytestmark = pytest.mark.engine


def picture() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (2, 2)).save(made, "PNG")
    return made.getvalue()


class Elsewhere(BaseHTTPRequestHandler):
    """Web server with a picture at each path except `/away`, which redirects to another path."""

    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        away = self.path == "/away"
        self.send_response(302 if away else 200)
        if away:
            self.send_header(
                "Location", f"http://localhost:{self.connection.getsockname()[1]}/picture"
            )
        self.end_headers()
        self.wfile.write(b"" if away else picture())

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@pytest.fixture
def port() -> Iterator[int]:
    Elsewhere.paths.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def connector(monkeypatch: pytest.MonkeyPatch, **engine_args: Any) -> MediaConnector:
    """Connector that vLLM's server makes from a tenant's command line and environment."""
    tenant = {"name": "a", "model": "/m", "share": 50, "engine_args": engine_args}
    made = Config.model_validate({"device": {"memory": "1GiB"}, "tenants": [tenant]})
    for name, value in CAREFUL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    read = parse(arguments_of(made, made.tenants[0]))
    return MediaConnector(
        allowed_local_media_path=read.allowed_local_media_path,
        allowed_media_domains=read.allowed_media_domains,
    )


def fetched_nowhere(found: MediaConnector, url: str) -> None:
    """Check that the URL is refused by both ways of fetching, synchronous and asynchronous."""
    with pytest.raises(Exception, match=r"(?s).+"):
        found.fetch_image(url)
    with pytest.raises(Exception, match=r"(?s).+"):
        asyncio.run(found.fetch_image_async(url))


URLS = [
    *("http://127.0.0.1:{port}/", "HTTP://127.0.0.1:{port}/", "http://localhost:{port}/"),
    *("http://[::ffff:127.0.0.1]:{port}/", "http://2130706433:{port}/", "http://0:{port}/"),
    *("http://data:@127.0.0.1:{port}/", "http://data%3A%20URLs%20alone@127.0.0.1:{port}/"),
    *("http://data: URLs alone@127.0.0.1:{port}/", "http://127.0.0.1:{port}#data: URLs alone"),
    *("httpx://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "http:127.0.0.1:{port}/"),
    *("http:\\\\127.0.0.1:{port}/", "//127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/"),
    *("http://data: URLs alone/", "http://{domain}:{port}/", " http://127.0.0.1:{port}/"),
]


@pytest.mark.parametrize("engine_args", [{}, {"allowed_media_domains": []}])
def test_no_url_is_fetched_by_default(
    monkeypatch: pytest.MonkeyPatch, port: int, engine_args: dict[str, Any]
) -> None:
    found = connector(monkeypatch, **engine_args)
    for url in URLS:
        fetched_nowhere(found, url.format(port=port, domain=NO_DOMAIN))
    assert Elsewhere.paths == []


def test_no_file_is_read_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture())
    found = connector(monkeypatch)
    for url in (f"file://{file}", f"file://localhost{file}", f"FILE://{file}", str(file)):
        fetched_nowhere(found, url)
    allowed = connector(monkeypatch, allowed_local_media_path=str(tmp_path))
    assert allowed.fetch_image(f"file://{file}").media.size == (2, 2)
    fetched_nowhere(allowed, f"file://{tmp_path}/../{tmp_path.parent.name}x/a.png")


def test_what_a_request_brings_itself_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = base64.b64encode(picture()).decode()
    assert connector(monkeypatch).fetch_image(f"data:image/png;base64,{text}").media.size == (2, 2)


def test_a_host_that_is_named_is_fetched_from_and_sends_nobody_on(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    found = connector(monkeypatch, allowed_media_domains=["127.0.0.1"])
    assert found.fetch_image(f"http://127.0.0.1:{port}/picture").media.size == (2, 2)
    fetched_nowhere(found, f"http://localhost:{port}/picture")
    Elsewhere.paths.clear()
    fetched_nowhere(found, f"http://127.0.0.1:{port}/away")
    assert set(Elsewhere.paths) == {"/away"}
