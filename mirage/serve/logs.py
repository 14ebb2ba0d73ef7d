"""Lines that a server writes about itself: as text or as JSON, to standard error or to a file."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from mirage.config import ConfigError

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
SAID = logging.getLogger("mirage.said")
"""Logger of what is `said`, where it is not simply printed."""
FIELDS = "fields"
"""Name in `extra` of a record's own fields."""


class LogFormat(StrEnum):
    """Form of each line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class LogPlan:
    """Lines of one server; all of its processes write to the same files."""

    form: LogFormat = LogFormat.TEXT
    file: Path | None = None
    """None: standard error."""
    access: Path | None = None
    """File that gets a line for each request; None: none is written."""
    device: str = ""
    """Name of the device that each line is about, among several."""

    def check(self) -> None:
        """Raises `ConfigError` for a file that cannot be written."""
        for option, file in (("--log-file", self.file), ("--access-log", self.access)):
            if file is None:
                continue
            try:
                with file.open("a"):
                    pass
            except OSError as error:
                raise ConfigError(
                    f"{option} {file}: {error.strerror or error}: name a file that can be written"
                ) from None

    def words(self) -> list[str]:
        """Options for the router's process."""
        words = ["--log-format", self.form.value]
        for option, file in (("--log-file", self.file), ("--access-log", self.access)):
            words += [] if file is None else [option, str(file.absolute())]
        return words


TO_STDERR = LogPlan()


class JsonLine(logging.Formatter):
    """Formats a record as a JSON object in one line: its fields beside its message."""

    def __init__(self, device: str = "") -> None:
        """`device` as in `LogPlan`."""
        super().__init__()
        self._device = {"device": device} if device else {}

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        } | self._device
        if message := record.getMessage():
            told["message"] = message
        told |= getattr(record, FIELDS, {})
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


class ReopenedFile(WatchedFileHandler):
    """A file that is opened with its first line, and anew once another program has moved it.

    What cannot be written is lost, and harms nobody.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", delay=True, errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # what was not written to a file that has been moved must not hold it open
            self._drop()

    def _drop(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: a line for each line would follow on a disk that is full."""


def log_by(plan: LogPlan, level: int | str) -> None:
    """Have this process log so from now on."""
    handler: logging.Handler
    handler = logging.StreamHandler(sys.stderr) if plan.file is None else ReopenedFile(plan.file)
    as_json = plan.form is LogFormat.JSON
    handler.setFormatter(JsonLine(plan.device) if as_json else _text(plan.device))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("mirage").setLevel(level)
    if as_json or plan.file is not None:
        SAID.propagate = False
        SAID.setLevel(logging.INFO)
        SAID.addHandler(handler)


def _text(device: str) -> logging.Formatter:
    return logging.Formatter(TEXT if not device else TEXT.replace(" ", f" {device} ", 1))


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
