"""Log lines of a server: as text or as JSON, to standard error or to a file."""

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
"""Logger for lines of `say`, used if they are not simply printed."""
FIELDS = "fields"
"""Key in `extra` for a record's own fields."""


class LogFormat(StrEnum):
    """Form of log lines."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class LogPlan:
    """Places and form of one server's log lines; all of its processes write to the same files."""

    form: LogFormat = LogFormat.TEXT
    file: Path | None = None
    """File for log lines; None is standard error."""
    access: Path | None = None
    """File for a line about each request; None writes none."""
    device: str = ""
    """Device that lines name, if there are several; else empty."""

    def check(self) -> None:
        """Raise `ConfigError` for a file that cannot be written."""
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
        """Options for the command line of the router's process."""
        words = ["--log-format", self.form.value]
        for option, file in (("--log-file", self.file), ("--access-log", self.access)):
            words += [] if file is None else [option, str(file.absolute())]
        return words


TO_STDERR = LogPlan()


class JsonLine(logging.Formatter):
    """Formatter that writes a record as one line of JSON: its message and its fields."""

    def __init__(self, device: str = "") -> None:
        """`device` is the device that lines name, if there are several; else empty."""
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
    """Log file that is opened with the first line, and opened anew after another program has moved
    it.

    Lines that cannot be written are lost, without an error.
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
        """Do nothing: on a full disk an error would follow for each line."""


def log_by(plan: LogPlan, level: int | str) -> None:
    """Set up the logging of this process as `plan` says."""
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
