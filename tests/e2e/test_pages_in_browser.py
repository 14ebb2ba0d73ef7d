"""Every page in a real browser: light and dark, on a screen and on a phone.

Chromium comes with PyQt6-WebEngine: ``make pages`` installs it into a folder of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pages import all_pages

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find_spec("PyQt6") is None or find_spec("PyQt6.QtWebEngineCore") is None,
        reason="no browser: make pages, or pip install '.[browser]'",
    ),
]

BROWSER = Path(__file__).with_name("browser.py")
PAGES = ("replay", "simulate", "decode", "tune", "profile")
SCREEN, PHONE = 1280, 390
"""Widths of the window in CSS pixels."""
LEGIBLE = 3.0
"""WCAG's contrast for large text; marks of a picture count as such."""
READABLE_PX = 600
"""Least width of a picture in CSS pixels: the letters of a narrower one are too small to read."""


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Function that returns what a page looks like in a browser, in a colour scheme
    and at a width.
    """
    folder = tmp_path_factory.mktemp("pages")
    pages = all_pages(folder)

    @cache
    def seen(scheme: str, width: int) -> dict[str, Any]:
        words = [sys.executable, str(BROWSER), scheme, str(width), *map(str, pages.values())]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])["pages"]
        return {name: found[str(path)] for name, path in pages.items()}

    return lambda page, scheme, width: seen(scheme, width)[page]


each_page = pytest.mark.parametrize("page", PAGES)
each_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])
each_width = pytest.mark.parametrize("width", [SCREEN, PHONE])


@each_page
@each_scheme
@each_width
def test_it_loads_asks_for_nothing_and_says_nothing(
    look: Any, page: str, scheme: str, width: int
) -> None:
    found = look(page, scheme, width)
    assert found["loaded"] and found["title"].startswith("MIRAGE")
    assert found["said"] == []
    assert found["asked"] == []
    assert all(found["images"])


@each_page
@each_scheme
@each_width
def test_the_page_itself_does_not_scroll_sideways(
    look: Any, page: str, scheme: str, width: int
) -> None:
    found = look(page, scheme, width)
    assert found["width"] == width
    assert found["page_width"] <= width
    assert found["cut"] == 0


@each_page
@each_scheme
@each_width
def test_every_picture_is_large_enough_and_has_a_name(
    look: Any, page: str, scheme: str, width: int
) -> None:
    drawings = look(page, scheme, width)["drawings"]
    assert len(drawings) >= 4
    for wide, high, name in drawings:
        assert wide >= READABLE_PX and high > 60, name
        assert name
    assert len({name for _, _, name in drawings}) == len(drawings)


@each_page
@each_scheme
def test_every_text_can_be_read(look: Any, page: str, scheme: str) -> None:
    found = look(page, scheme, SCREEN)
    assert found["texts"] > 50
    assert [text for contrast, text in found["faintest"] if contrast < LEGIBLE] == []


@each_page
def test_dark_is_dark_and_light_is_light(look: Any, page: str) -> None:
    light, dark = look(page, "light", SCREEN), look(page, "dark", SCREEN)
    assert (light["dark"], dark["dark"]) == (False, True)
    assert min(light["paper"]) > 200 > 60 > max(dark["paper"])
    assert min(light["card"]) > 200 > 60 > max(dark["card"])


def test_a_page_with_faults_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><title>bad</title><main><section style='width: 900px'>"
        "<img src='http://127.0.0.1:9/x.png'><p style='color: #eee'>pale</p></section></main>"
        "<script>nope()</script>"
    )
    words = [sys.executable, str(BROWSER), "light", str(PHONE), str(page)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    (found,) = json.loads(done.stdout.splitlines()[-1])["pages"].values()
    assert any("nope is not defined" in line for line in found["said"])
    assert found["asked"] == ["http://127.0.0.1:9/x.png"]
    assert found["images"] == [False]
    assert found["page_width"] > PHONE
    assert found["faintest"][0][0] < LEGIBLE and found["faintest"][0][1] == "pale"
