"""Requests of a `Synthetic` trace, drawn from a seed, one at a time and without end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from mirage.workload import drawing
from mirage.workload.formats.request import MAX_TOKENS, TraceRequest
from mirage.workload.formats.synthetic_schema import Synthetic


def requests(asked: Synthetic, seed: int) -> Iterator[TraceRequest]:
    """Endless requests in order of arrival, the first at 0 s. The times of single requests, or of
    the beginnings of sessions, do not change with the keys of lengths and prefixes.
    """
    draws = _Draws(asked, seed)
    return _conversations(draws) if asked.sessions else map(draws.single, draws.starts())


@dataclass(slots=True)
class _Session:
    """The state of a session before its next turn."""

    name: str
    prefix: int | None
    said: int
    """Tokens of the conversation so far, which are those of the last prompt (it repeats all before
    it) and its answer; before the first turn those of the shared prefix.
    """


def _conversations(draws: _Draws) -> Iterator[TraceRequest]:
    """Turns of all sessions ordered by time; only the open sessions are held in memory."""
    due: list[tuple[float, int, _Session]] = []
    for number, start_s in enumerate(draws.starts()):
        while due and due[0][0] <= start_s:
            at_s, order, session = heappop(due)
            yield draws.turn(session, at_s)
            if draws.goes_on(session):
                heappush(due, (at_s + draws.thinking_s(), order, session))
        heappush(due, (start_s, number, draws.session(number)))


class _Draws:
    """Random draws of a synthetic trace; each kind of draw has a stream of its own."""

    def __init__(self, asked: Synthetic, seed: int) -> None:
        self._asked = asked
        streams = (
            random.Random(f"synthetic {what} {seed}")
            for what in ("arrivals", "lengths", "prefixes", "sessions")
        )
        self._arrivals, self._lengths, self._prefixes, self._sessions = streams
        self._shapes, self._weights = asked.shapes

    def starts(self) -> Iterator[float]:
        """Endless times in seconds at which single requests arrive, or sessions begin."""
        asked = self._asked
        rate = asked.rate / (asked.sessions.turns if asked.sessions else 1)
        if asked.cv is None:
            gaps = drawing.poisson_gaps(self._arrivals)
        else:
            gaps = drawing.gamma_gaps(self._arrivals, asked.cv)
        return accumulate((gap / rate for gap in gaps), initial=0.0)

    def single(self, at_s: float) -> TraceRequest:
        """A request without a session."""
        prefix = self._prefix()
        prompt, output = self._tokens()
        return self._request(at_s, self._prefix_tokens(prefix) + prompt, output, None, prefix)

    def session(self, number: int) -> _Session:
        prefix = self._prefix()
        return _Session(str(number), prefix, self._prefix_tokens(prefix))

    def turn(self, session: _Session, at_s: float) -> TraceRequest:
        """The next request of a session, whose prompt and answer are then added to it."""
        fresh, output = self._tokens()
        prompt = min(session.said + fresh, MAX_TOKENS)
        session.said = prompt + output
        return self._request(at_s, prompt, output, session.name, session.prefix)

    def goes_on(self, session: _Session) -> bool:
        assert self._asked.sessions is not None
        more = self._sessions.random() >= 1 / self._asked.sessions.turns
        return more and session.said < MAX_TOKENS

    def thinking_s(self) -> float:
        assert self._asked.sessions is not None
        return self._sessions.expovariate(1) * self._asked.sessions.think_s

    def _request(
        self, at_s: float, prompt: int, output: int, session: str | None, prefix: int | None
    ) -> TraceRequest:
        if prefix is None:
            return TraceRequest(at_s, prompt, output, session)
        tokens = self._prefix_tokens(prefix)
        return TraceRequest(at_s, min(prompt, MAX_TOKENS), output, session, (prefix,), tokens)

    def _tokens(self) -> tuple[int, int]:
        shapes, rng = self._shapes, self._lengths
        shape = shapes[0] if len(shapes) == 1 else rng.choices(shapes, self._weights)[0]
        prompt, output = drawing.lengths(rng, shape)
        bounds = self._asked.bounds
        return _cut(prompt, bounds.prompt), _cut(output, bounds.output)

    def _prefix(self) -> int | None:
        """Number of a shared prefix for a request or session; None for no prefix."""
        known = self._asked.prefixes
        if known is None or self._prefixes.random() >= known.share:
            return None
        return self._prefixes.randrange(known.count)

    def _prefix_tokens(self, prefix: int | None) -> int:
        known = self._asked.prefixes
        return 0 if known is None or prefix is None else known.tokens


def _cut(tokens: int, bounds: tuple[int, int]) -> int:
    least, most = bounds
    return min(max(tokens, least), most)
