"""Routes by which weights come into the store of a machine before their model is served there."""

from __future__ import annotations

from aiohttp import web

from mirage.serve.admin.asked import as_json
from mirage.serve.admin.audit import audited
from mirage.serve.ahead import WeightsAhead
from mirage.serve.apply.revision import Revision


class Bringing:
    """Routes of one machine's `ahead`."""

    def __init__(self, ahead: WeightsAhead, revision: Revision) -> None:
        self.ahead, self._revision = ahead, revision

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [web.post("/weights/{model:(?s:.+)}", self._bring)]

    async def _bring(self, request: web.Request) -> web.Response:
        """Have a model of the store come, by its name or id; asked again, how far it is."""
        model = request.match_info["model"]
        if self.ahead.knows(model):
            return as_json(self.ahead.bring(model), self._revision)
        with audited(request, "bring", model) as result:
            told = self.ahead.bring(model)
            result.append(f"200 {told.state}")
            return as_json(told, self._revision)
