"""Conversations of a timed trace whose rows may name their chat and the chat before it.

Qwen's traces of Bailian have ``chat_id`` and ``parent_chat_id``, which is -1 for the first chat.
All chats that go back to the same first one are one session.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from mirage.workload.formats.checks import session

NAME, CHAT, BEFORE = "session_id", "chat_id", "parent_chat_id"
NONE = "-1"
KEPT = 100_000
"""Most chats whose session is remembered. Memory stays constant over a trace of millions of
rows.
"""


class Chats:
    """Sessions of the rows of one trace; rows are given in order."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def session(self, entry: dict[str, Any], where: str) -> str | None:
        """Name of the session that a row belongs to; None if the row names neither a session nor a
        chat. Raises `TraceError` if a name is neither a text nor a whole number.
        """
        given = session(entry, NAME, where)
        chat, before = session(entry, CHAT, where), session(entry, BEFORE, where)
        found = given or self._of(before) or self._of(chat)
        if chat is not None and found is not None:
            self._sessions[chat] = found
            if len(self._sessions) > KEPT:
                self._sessions.popitem(last=False)
        return found

    def _of(self, chat: str | None) -> str | None:
        """Session of a chat: the one noted before, else the chat's own name; None if the row names
        no chat.
        """
        return None if chat in (None, NONE) else self._sessions.get(chat, chat)
