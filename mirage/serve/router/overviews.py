"""Overviews of one device, shared by all viewers: more viewers ask the supervisor no more often."""

from __future__ import annotations

from functools import partial

from mirage.serve.router.asked_source import LIMIT_S, AskedSource, renewed
from mirage.serve.router.inner import InnerClient, away


class SharedOverview:
    """Overview of a supervisor, asked for on demand, at most once a second.

    Call `close` at the end.
    """

    def __init__(self, inner: InnerClient) -> None:
        self._sources = {
            reasons: AskedSource(partial(inner.overview, reasons=reasons))
            for reasons in (True, False)
        }
        """Sources of the overview, with reasons (True) and without."""

    async def told(self, *, reasons: bool) -> bytes:
        """The overview as JSON; with `reasons` it has lines of logs too. Raises `ApiError` if the
        supervisor does not answer.
        """
        source = self._sources[reasons]
        await renewed([source], LIMIT_S)
        if source.answer is None:
            raise away()
        return source.answer

    def close(self) -> None:
        """Stop asking the supervisor. Idempotent."""
        for source in self._sources.values():
            source.close()
