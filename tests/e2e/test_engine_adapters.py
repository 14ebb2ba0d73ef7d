"""Answers of an engine's API server about its adapters that cannot be used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from mirage.serve.adapting.engine_routes import AdaptersUnknown, EngineAdapterRoutes

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "body", ["", "no JSON", "[]", "{}", '{"data": 1}', '{"data": [{}]}', '{"data": ["a"]}']
)
def test_an_answer_that_is_no_list_of_models_is_asked_for_again(short: Path, body: str) -> None:
    """The caller asks again after `AdaptersUnknown`, and would end at any other error."""

    async def run() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=body, content_type="application/json")

        app = web.Application()
        app.router.add_get("/v1/models", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(short / "s")).start()
        try:
            with pytest.raises(AdaptersUnknown):
                await EngineAdapterRoutes(short / "s").listed()
        finally:
            await runner.cleanup()

    asyncio.run(run())
