"""vLLM's routes for adapters, at the private socket of an engine's API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from mirage.problems import one_line

LISTED, LOAD, UNLOAD = "/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
"""Routes of vLLM. Clients cannot use the last two, which the router refuses."""
ANSWER_S = 120.0
"""Seconds to wait for an answer: files are read, perhaps after a long step."""


class AdaptersUnknown(Exception):
    """Error: the engine's API server does not answer, or gives no usable answer."""


class EngineAdapterRoutes:
    """Client of vLLM's routes for adapters, at the `socket` of one engine's API server."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def listed(self) -> dict[str, str]:
        """Folder of each model and adapter, by the name that the engine has for it; an empty text
        if the engine tells no folder.

        Raises `AdaptersUnknown` if the engine does not answer, or not with a list.
        """
        async with self._asked("GET", LISTED) as answer:
            if answer.status != 200:
                raise AdaptersUnknown(f"{LISTED} answers {answer.status}")
            try:
                told = await answer.json()
                return {card["id"]: card.get("root") or "" for card in told["data"]}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise AdaptersUnknown(f"{LISTED} answers no list of models: {error!r}") from None

    async def load(self, name: str, folder: Path) -> str:
        """Load an adapter; return the reason why it cannot be loaded, or an empty text.

        Raises `AdaptersUnknown` if the engine does not answer.
        """
        return await self._told(LOAD, {"lora_name": name, "lora_path": str(folder)})

    async def unload(self, name: str) -> str:
        """Unload an adapter, which running requests go on using; return the reason why it cannot be
        unloaded, or an empty text.

        Raises `AdaptersUnknown` if the engine does not answer.
        """
        return await self._told(UNLOAD, {"lora_name": name})

    async def _told(self, route: str, body: dict[str, str]) -> str:
        async with self._asked("POST", route, body) as answer:
            if answer.status == 200:
                return ""
            try:
                told = await answer.json()
                return one_line(str(told["error"]["message"]))
            except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError):
                return f"its engine answers {answer.status} without a reason"

    @asynccontextmanager
    async def _asked(
        self, method: str, route: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
        limit = aiohttp.ClientTimeout(ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as http,
                http.request(method, f"http://engine{route}", json=body) as answer,
            ):
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise AdaptersUnknown(one_line(str(error)) or type(error).__name__) from None
