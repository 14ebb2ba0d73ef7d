"""Chromium, as QtWebEngine has it, looks at pages: ``browser.py SCHEME WIDTH PAGE…``.

SCHEME is light or dark, WIDTH the window's in CSS pixels. Prints one JSON object: Chromium's
version, and for each page what it said, asked for and looks like (``look.js``). With
``--pictures FOLDER`` each page is also drawn. Needs PyQt6-WebEngine and no display.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PyQt6.QtCore import QEventLoop, QTimer, QUrl
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineSettings,
    QWebEngineUrlRequestInterceptor,
    qWebEngineChromiumVersion,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

LOOK = Path(__file__).with_name("look.js").read_text()
FLAGS = "--no-sandbox --disable-gpu --blink-settings=preferredColorScheme="
DARK, LIGHT = 0, 1
"""Blink's numbers of the colour schemes."""
HEIGHT, HIGHEST = 844, 12_000
"""Height of the window and maximum height of a picture, in pixels."""
PATIENCE_MS, SETTLE_MS = 60_000, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scheme", choices=("light", "dark"))
    parser.add_argument("width", type=int)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("pages", nargs="+", type=Path)
    words = parser.parse_args()
    application = begun(words.scheme)
    browser = Browser(words.width)
    found = {}
    for path in words.pages:
        found[str(path)] = browser.look(path)
        if words.pictures:
            name = f"{path.stem}-{words.scheme}-{words.width}.png"
            browser.draw(words.pictures / name, found[str(path)]["height"])
    print(json.dumps({"chromium": qWebEngineChromiumVersion(), "pages": found}), flush=True)
    browser.close()
    del application


def begun(scheme: str) -> QApplication:
    """Start Qt without a display. Pages see `scheme` (light or dark) as the colour scheme that the
    user prefers.
    """
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = FLAGS + str(DARK if scheme == "dark" else LIGHT)
    return QApplication(sys.argv[:1])


class Page(QWebEnginePage):
    """Page that keeps all console messages, of its scripts and of the browser."""

    def __init__(self, profile: QWebEngineProfile) -> None:
        super().__init__(profile)
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
        self.said.append(f"{level.name}, line {line}: {message}")


class Requests(QWebEngineUrlRequestInterceptor):
    """Records every address that a page requests, and blocks all but those of `site`, of files, and
    of data in the page itself.
    """

    def __init__(self, site: str = "") -> None:
        super().__init__()
        self._site = site
        self.asked: list[str] = []

    def interceptRequest(self, request: Any) -> None:
        url = request.requestUrl()
        self.asked.append(url.toString())
        ours = bool(self._site) and url.toString().startswith(f"{self._site}/")
        request.block(not ours and url.scheme() not in ("file", "data"))


class Browser:
    """One browser window that shows pages one after the other."""

    def __init__(self, width: int, site: str = "") -> None:
        self._width = width
        self._profile, self._requests, self._view = (
            QWebEngineProfile(),
            Requests(site),
            QWebEngineView(),
        )
        self._profile.setUrlRequestInterceptor(self._requests)
        self._page = Page(self._profile)
        # Or what a page of a file asks for elsewhere is refused before it can be seen.
        remote = QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls
        self._page.settings().setAttribute(remote, True)
        self._view.setPage(self._page)
        self._view.resize(width, HEIGHT)
        self._view.show()

    def look(self, path: Path) -> dict[str, Any]:
        """Load a page, and return what it looks like, which addresses it requested, and its
        messages.
        """
        self._page.said.clear()
        self._requests.asked.clear()
        url = QUrl.fromLocalFile(str(path.resolve()))
        loaded = waited(lambda done: self._load(url, done))
        self._page.loadFinished.disconnect()
        seen = waited(lambda done: self._page.runJavaScript(LOOK, done))
        own = (url.toString(), "data:")
        asked = [address for address in self._requests.asked if not address.startswith(own)]
        return {"loaded": loaded, "said": list(self._page.said), "asked": asked, **seen}

    def draw(self, path: Path, height: float) -> None:
        """Save a picture of the whole page as it is now to `path`."""
        self._view.resize(self._width, min(int(height), HIGHEST))
        waited(lambda done: QTimer.singleShot(SETTLE_MS, done))
        self._view.grab().save(str(path))
        self._view.resize(self._width, HEIGHT)

    def close(self) -> None:
        """Close page, then profile, because Qt requires that no page outlives its profile."""
        self._view.deleteLater()
        self._page.deleteLater()
        waited(lambda done: QTimer.singleShot(0, done))

    def _load(self, url: QUrl, done: Callable[..., None]) -> None:
        self._page.loadFinished.connect(done)
        self._view.load(url)


def waited(begin: Callable[[Callable[..., None]], Any]) -> Any:
    """Start an asynchronous call of Qt and return the argument of its callback. Fails if the
    callback is not called within `PATIENCE_MS`.
    """
    loop = QEventLoop()
    got: list[Any] = []

    def done(value: Any = None) -> None:
        got.append(value)
        loop.quit()

    QTimer.singleShot(PATIENCE_MS, loop.quit)
    begin(done)
    if not got:
        loop.exec()
    assert got, f"nothing within {PATIENCE_MS} ms"
    return got[0]


if __name__ == "__main__":
    main()
