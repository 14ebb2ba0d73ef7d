"""ShareGPT's conversations: a JSON array, or one JSON object a line, without times and lengths.

Each entry has ``conversations``, a list of turns ``{"from": "human" | "gpt", "value": text}``. A
human turn followed by one of the model is a request, and an entry is a session. A request's prompt
counts all text before it in its session, since a chat's server receives all of it. Lengths are
estimated (`CHARACTERS_PER_TOKEN`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mirage.workload.formats.checks import estimated, field, session, text
from mirage.workload.formats.contract import Format
from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceError, TraceRequest
from mirage.workload.formats.source import Source
from mirage.workload.formats.telling import shown

HUMANS = {"human", "user"}
MODELS = {"gpt", "assistant", "chatgpt", "bing", "bard"}
EMPTY = "turns with an empty question or answer"
UNANSWERED = "conversations without a question and its answer"

Turn = tuple[str, str]
"""Speaker of a message, and its text."""


def _fits(head: Head) -> bool:
    return "conversations" in head.fields


def _read(source: Source) -> Iterator[TraceRequest]:
    for number, (where, entry) in enumerate(source.objects(), start=1):
        turns = [_turn(turn, where) for turn in _turns(entry, where)]
        name = session(entry, "id", where) or str(number)
        requests = list(_requests(turns, name, where, source))
        if not requests:
            source.skip(UNANSWERED)
        yield from requests


def _requests(turns: list[Turn], name: str, where: str, source: Source) -> Iterator[TraceRequest]:
    said = 0
    for (speaker, question), (answerer, answer) in pairwise(turns):
        said += len(question)
        if speaker not in HUMANS or answerer not in MODELS:
            continue
        if not question.strip() or not answer.strip():
            source.skip(EMPTY)
            continue
        context = estimated(said, "prompt", where)
        output = estimated(len(answer), "answer", where)
        yield TraceRequest(0.0, context, output, name, prompt=question)


def _turns(entry: dict[str, Any], where: str) -> list[Any]:
    turns = field(entry, "conversations", where)
    if not isinstance(turns, list):
        raise TraceError(f"{where}: conversations {shown(turns)}, expected a list of turns")
    return turns


def _turn(turn: Any, where: str) -> Turn:
    if not isinstance(turn, dict):
        raise TraceError(f"{where}: turn {shown(turn)}, expected an object with from and value")
    return text(turn, "from", where), text(turn, "value", where)


FORMAT = Format(
    "sharegpt", "JSON with conversations of from and value", _fits, _read, has_arrivals=False
)
