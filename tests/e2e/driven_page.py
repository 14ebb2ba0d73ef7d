"""A page of a server in Chromium, driven line by line: ``driven_page.py SCHEME WIDTH SITE PATH``.

Each line of stdin is a JSON list of a command and its words, each line of stdout its result:
``["js", EXPRESSION]``, ``["key", NAME, TIMES]`` and ``["type", TEXT]`` as by a keyboard,
``["look"]`` (``look.js``), ``["said"]``, ``["asked"]``, ``["draw", FILE]``, ``["reload"]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from browser import LOOK, Browser, begun, waited
from PyQt6.QtCore import QSocketNotifier, Qt, QTimer, QUrl
from PyQt6.QtTest import QTest

KEYS = {
    "Tab": Qt.Key.Key_Tab,
    "Enter": Qt.Key.Key_Return,
    "Space": Qt.Key.Key_Space,
}
KEY_MS = 30


class DrivenPage(Browser):
    """A loaded page, and the commands that a test gives to it."""

    def begin(self, url: str) -> bool:
        self._view.activateWindow()
        self._view.setFocus()
        return bool(waited(lambda done: self._load(QUrl(url), done)))

    def do(self, command: str, *words: Any) -> Any:
        """Run one command, and return its result."""
        return getattr(self, f"do_{command}")(*words)

    def do_js(self, expression: str) -> Any:
        script = f"JSON.stringify({expression})"
        return json.loads(waited(lambda done: self._page.runJavaScript(script, done)) or "null")

    def do_key(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            QTest.keyClick(self._view.focusProxy(), KEYS[name], delay=KEY_MS)

    def do_type(self, text: str) -> None:
        QTest.keyClicks(self._view.focusProxy(), text, delay=KEY_MS)

    def do_look(self) -> Any:
        return waited(lambda done: self._page.runJavaScript(LOOK, done))

    def do_said(self) -> list[str]:
        return self._page.said

    def do_asked(self) -> list[str]:
        return self._requests.asked

    def do_draw(self, path: str) -> None:
        height = waited(
            lambda done: self._page.runJavaScript("document.documentElement.scrollHeight", done)
        )
        self.draw(Path(path), height)

    def do_reload(self) -> None:
        self._page.loadFinished.disconnect()
        waited(lambda done: (self._page.loadFinished.connect(done), self._view.reload()))


def main(scheme: str, width: str, site: str, path: str) -> None:
    application = begun(scheme)
    page = DrivenPage(int(width), site)
    print(json.dumps(page.begin(site + path)), flush=True)
    notifier = QSocketNotifier(sys.stdin.fileno(), QSocketNotifier.Type.Read)

    def hear() -> None:
        if line := sys.stdin.readline():
            notifier.setEnabled(False)
            print(json.dumps(page.do(*json.loads(line))), flush=True)
            notifier.setEnabled(True)
        else:
            QTimer.singleShot(0, application.quit)

    notifier.activated.connect(hear)
    application.exec()
    page.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
