"""`mirage top` in a terminal of 80x24, driven by Textual's pilot, for servers with fake engines."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from operated import Operated, content, operated, tenant
from short_folders import short_of_module  # noqa: F401
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.forms import OperatorAct
from mirage.serve.overview.forms import OverviewTold
from mirage.tools.top.app import TopApp
from mirage.tools.top.confirming import Confirming
from mirage.tools.top.server import WatchedServer

pytestmark = pytest.mark.e2e

EVERY_S = 0.2
LIMIT_S = 240
MANY = 40
ODD = "o/" + 60 * "c"
SMALL = 80, 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short: Path) -> Iterator[Operated]:
    told = content()
    told["tenants"] = [tenant("a", start="eager"), tenant("b"), tenant("c")]
    with operated(tmp_path_factory.mktemp("s"), short, told) as running:
        yield running


Scene = Callable[[TopApp, "Pilot[Any]"], Awaitable[None]]


def watching(server: WatchedServer, scene: Scene, size: tuple[int, int] = SMALL) -> None:
    async def main() -> None:
        app = TopApp(server, EVERY_S)
        app.NOTIFICATION_TIMEOUT = LIMIT_S  # a slow machine may look later than in five seconds
        async with app.run_test(size=size) as pilot, asyncio.timeout(LIMIT_S):
            await scene(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[Any], holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S / 2
    while not holds():
        assert time.monotonic() < deadline, screen(pilot.app)
        await pilot.pause(0.05)


def text(app: Any, selector: str) -> str:
    return str(app.screen_stack[0].query_one(selector, Static).content)


def cells(app: TopApp) -> list[list[str]]:
    table: DataTable[Any] = app.table
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def screen(app: Any) -> str:
    """Text of the terminal's screen."""
    drawn = app.export_screenshot()
    return "\n".join(re.findall(r">([^<]+)</text>", drawn)).replace("&#160;", " ")


def said(app: TopApp) -> list[str]:
    """Notifications that the screen shows."""
    return [one.message for one in app._notifications]


def states(app: TopApp) -> dict[str, str]:
    return {row[0]: row[1] for row in cells(app)}


def test_tenants_memory_and_decisions_are_on_the_screen(server: Operated) -> None:
    async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: states(app).get("a") == "ready")
        head = text(app, "#head")
        assert head.startswith("host:0  policy mirage  ") and "of 4.0 MiB held" in head
        rows = cells(app)
        assert [row[0] for row in rows] == ["a", "b", "c"]
        assert "█" in rows[0][2] and rows[0][3] == "1.6 MiB" and rows[1][3] == "0.0 MiB"
        assert "█ weights" in text(app, "#device") and "held by nobody" in text(app, "#device")
        assert "a is ready" in text(app, "#detail")
        for word in ("TENANT", "REQ/S", "TPOT", "R+W", "Sleep", "Wake", "Drain", "Stop", "Quit"):
            await until(pilot, lambda word=word: word in screen(app))

    watching(WatchedServer(server.address), scene)


def test_keys_act_on_the_tenant_of_the_cursor(server: Operated) -> None:
    async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: states(app).get("b"))
        await pilot.press("down")
        assert "b is " in text(app, "#detail")
        await pilot.press("w")
        await until(pilot, lambda: states(app)["b"] == "ready")
        for key, state in (("s", "sleeping"), ("x", "stopped")):
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, Confirming))
            assert "b?" in screen(app)
            await pilot.press("n")
            await until(pilot, lambda: not isinstance(app.screen, Confirming))
            await pilot.pause(3 * EVERY_S)
            assert states(app)["b"] != state
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, Confirming))
            await pilot.press("y")
            await until(pilot, lambda state=state: states(app)["b"] == state)
        assert states(app)["a"] == "ready"
        assert "b is stopped, and was" in text(app, "#decisions")

    watching(WatchedServer(server.address), scene)


def test_an_act_while_an_overview_is_awaited_reaches_the_server(
    server: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedServer(server.address)
    watched.overview()
    asked, may_answer, overview = threading.Event(), threading.Event(), AdminClient.overview

    def late(client: AdminClient) -> OverviewTold:
        asked.set()
        assert may_answer.wait(LIMIT_S)
        return overview(client)

    monkeypatch.setattr(AdminClient, "overview", late)
    looking = threading.Thread(target=watched.overview)
    looking.start()
    try:
        assert asked.wait(LIMIT_S)
        assert watched.act("a", OperatorAct.WAKE)
    finally:
        may_answer.set()
        looking.join()


def test_what_cannot_be_done_is_said(server: Operated) -> None:
    async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: states(app).get("c") == "stopped")
        await pilot.press("down", "down", "d")
        await until(pilot, lambda: isinstance(app.screen, Confirming))
        await pilot.press("y")
        await until(pilot, lambda: "c is stopped: it has no engine that could drain" in said(app))

    watching(WatchedServer(server.address), scene)


def test_a_server_that_goes_away_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends: the screen keeps the last states and says that it does not answer. The next
    server, in another folder, is found and shown with the cursor at the same place.
    """
    told = content()
    told["tenants"] = [tenant("a", start="eager"), tenant("b")]
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        short = Path(folder)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setenv("XDG_RUNTIME_DIR", "")
        monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", None)

        async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
            with operated(tmp_path / "one", short, told):
                await until(pilot, lambda: states(app).get("a") == "ready")
                await pilot.press("down")
                assert not app.query_one("#away").display
            await until(pilot, lambda: app.query_one("#away").display)
            assert "No answer for" in text(app, "#away")
            assert states(app)["a"] == "ready", "it shows what was said last"
            await pilot.press("w")
            await until(pilot, lambda: "the server does not answer" in said(app))
            with operated(tmp_path / "two", short, told):
                await until(pilot, lambda: not app.query_one("#away").display)
                await until(pilot, lambda: states(app).get("a") == "ready")
                assert "b is " in text(app, "#detail"), "the cursor is where it was"

        watching(WatchedServer(), scene)


def test_forty_tenants_come_and_go(tmp_path: Path) -> None:
    told = content()
    names = [f"tenant-{number:02}" for number in range(MANY - 1)] + [ODD]
    told["tenants"] = [tenant(name, share=40) for name in names]
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        operated(tmp_path / "s", Path(folder), told) as running,
    ):

        async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
            await until(pilot, lambda: app.table.row_count == MANY)
            await pilot.press("ctrl+end")
            assert f"{ODD} is stopped" in text(app, "#detail")
            assert app.table.scroll_y > 0
            await pilot.press("up")
            told["tenants"] = told["tenants"][5:]
            await asyncio.to_thread(running.apply, told)
            await until(pilot, lambda: app.table.row_count == MANY - 5)
            assert f"{names[-2]} is stopped" in text(app, "#detail"), "the cursor stays on it"
            await pilot.resize_terminal(160, 50)
            await until(pilot, lambda: app.size.width == 160)
            assert app.table.cursor_row == MANY - 7 and cells(app)[-1][0] == ODD

        watching(WatchedServer(running.address), scene)


def test_an_answer_that_comes_while_it_closes_is_dropped(server: Operated) -> None:
    watched = WatchedServer(server.address)
    apps = []

    async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: states(app))
        apps.append(app)

    watching(watched, scene)
    (app,) = apps
    with app._context():  # as `call_from_thread` has it
        app._is_told(watched.overview())
        app._is_away("It has ended.")
        app.on_data_table_row_highlighted()
        app.on_resize()


def test_all_fits_into_a_small_terminal(server: Operated) -> None:
    async def scene(app: TopApp, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: states(app).get("a") == "ready")
        assert app.table.virtual_size.width <= app.table.scrollable_content_region.width
        assert app.table.region.height >= 4
        for widget in app.screen.query("Static, DataTable, Footer"):
            assert widget.region.bottom <= SMALL[1] and widget.region.right <= SMALL[0]

    watching(WatchedServer(server.address), scene)


def test_it_needs_a_server_and_a_terminal(server: Operated) -> None:
    done = server.mirage("top")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "mirage: error: mirage top needs a terminal: use `mirage ps`, or GET /mirage/overview\n"
    )


def test_acts_of_the_footer_are_acts_of_operators() -> None:
    words = [re.match(r"act\('(\w+)'\)", action) for _, action, _ in TopApp.BINDINGS]  # type: ignore[misc]
    assert [OperatorAct(found[1]) for found in words if found] == ["sleep", "wake", "drain", "stop"]
