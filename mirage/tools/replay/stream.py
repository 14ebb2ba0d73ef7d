"""One streamed completion, parsed as its bytes arrive: text, tokens, and their times."""

from __future__ import annotations

from typing import Any

import msgspec


class StreamError(Exception):
    """The server reported an error, or its stream is invalid or was cut off."""


class StatusRefused(StreamError):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[Any] | None = None
    """Checked once for the whole answer."""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    """Event of the stream: the fields that are read."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class StreamedAnswer:
    """Server-sent events of ``/v1/completions``, in pieces of any size. Times are in seconds.

    `ttft_s` is from sending to the first token, `e2el_s` to the last; `itl_s` holds the gaps
    between. A chunk counts once even if the server put several tokens into it.
    """

    def __init__(self, sent_at: float) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ttft_s = 0.0
        self.e2el_s = 0.0
        self.itl_s: list[float] = []
        self._sent_at = sent_at
        self._rest = b""
        self._begun = False
        self._ended = False

    def feed(self, data: bytes, now: float) -> None:
        """Parse the next bytes of the stream, which arrived at `now` (seconds). A line that is not
        complete waits for the next call. Raises `StreamError` for an event that reports an error or
        is not one of the API; lines that are no events are skipped.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[len(b"data:") :].strip(), now)

    def close(self) -> None:
        """Finish at the end of the stream. Raises `StreamError` if it ended too early or is
        invalid.
        """
        if not self._ended:
            raise StreamError(f"the stream broke off after {self._tokens_so_far()}")
        if not self._begun:
            raise StreamError("the stream held no token")
        if odd := [one for one in self.token_ids if not _is_token(one)]:
            raise StreamError(f"token_ids: {odd[0]!r} is no token's number")
        self.output_tokens = self.output_tokens or len(self.token_ids) or 1 + len(self.itl_s)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._ended = True
            return
        event = _decode(payload)
        if event.error is not None:
            raise StreamError(error_message({"error": event.error}))
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt_tokens or 0
            self.output_tokens = event.usage.completion_tokens or 0
        for choice in event.choices or ():
            self._token(choice, now)

    def _token(self, choice: _Choice, now: float) -> None:
        latency = now - self._sent_at
        if self._begun:
            self.itl_s.append(latency - self.e2el_s)
        else:
            self._begun, self.ttft_s = True, latency
        self.e2el_s = latency
        self.text += choice.text or ""
        self.token_ids += choice.token_ids or []

    def _tokens_so_far(self) -> str:
        count = len(self.token_ids) or (1 + len(self.itl_s) if self._begun else 0)
        return f"{count} token{'' if count == 1 else 's'}"


def error_message(body: dict[str, Any]) -> str:
    """Message in an error body of the OpenAI API; the whole body as text if it contains no
    message."""
    error = body.get("error", body)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body)


def _is_token(number: object) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 32


def _decode(payload: bytes) -> _Event:
    try:
        return msgspec.json.decode(payload, type=_Event)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"not an event of the API: {payload[:80]!r} ({error})") from None
