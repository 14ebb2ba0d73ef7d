"""Routes that bring weights into this machine's store before their model is served here."""

from __future__ import annotations

from aiohttp import web

from mirage.serve.admin.asked import as_json
from mirage.serve.admin.audit import audited
from mirage.serve.apply.revision import Revision
from mirage.serve.models.weights_ahead import WeightsAhead


class Bringing:
    """Route ``POST /weights/MODEL``, which has `ahead` bring weights into this machine's store."""

    def __init__(self, ahead: WeightsAhead, revision: Revision) -> None:
        self.ahead, self._revision = ahead, revision

    def routes(self) -> list[web.RouteDef]:
        """All routes of this class."""
        return [web.post("/weights/{model:(?s:.+)}", self._bring)]

    async def _bring(self, request: web.Request) -> web.Response:
        """Begin to bring a model's weights into this machine's store, unless they are there or on
        their way, and answer with the progress. The path has the model's name or id in a store.
        """
        model = request.match_info["model"]
        if self.ahead.knows(model):
            return as_json(self.ahead.bring(model), self._revision)
        with audited(request, "bring", model) as result:
            told = self.ahead.bring(model)
            result.append(f"200 {told.state}")
            return as_json(told, self._revision)
