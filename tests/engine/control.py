"""A strict control server for one engine, which answers requests for memory as the test says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

from mirage.protocol import (
    PROTOCOL_VERSION,
    Alive,
    Allotment,
    FromEngine,
    Hello,
    Refusal,
    Report,
)
from mirage.wire import Channel, encode


class ControlServer:
    """`answer` is grant (what is asked for, up to `most` extents), refuse, or silent.

    With `recall_to` it recalls the engine once to that many extents, when `most` are in use. With
    `beat_s` it sends a sign of life at that interval, whatever else it does.
    """

    def __init__(
        self,
        path: Path,
        answer: str,
        delay_s: float = 0.0,
        most: int = 1 << 30,
        open_extents: int | None = None,
        recall_to: int | None = None,
        beat_s: float | None = None,
    ) -> None:
        self.answer, self.delay_s, self.most = answer, delay_s, most
        self.open_extents, self.recall_to = open_extents, recall_to
        self.beat_s = beat_s
        self.path = path
        self.hello: Hello | None = None
        self.reports: list[Report] = []
        self.problems: list[str] = []
        self.revision = 0
        self.recalled: int | None = None
        """The revision that called memory back."""
        self.granted = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self.connection = connection
        if self.beat_s is not None:
            threading.Thread(target=self._beat, args=(self.beat_s,), daemon=True).start()
        channel: Channel[FromEngine] = Channel(connection, FromEngine)
        with contextlib.closing(channel):
            for message in channel.until_end():
                self._take(message)

    def _beat(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                self.connection.sendall(encode(Alive()))
                time.sleep(seconds)

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Hello):
            if self.hello is not None or message.version != PROTOCOL_VERSION:
                self.problems.append(f"unexpected {message}")
            self.hello = message
            return
        if self.hello is None:
            self.problems.append("a report before the hello")
            return
        if not isinstance(message, Report):
            return
        self._check(message)
        self.reports.append(message)
        if self.recall_to is not None and message.kv_used_extents >= self.most:
            self._allot(message, self.recall_to, recall=True)
            self.answer, self.recall_to, self.recalled = "refuse", None, self.revision
        elif message.admission_extents > message.kv_extents:
            self._answer(message)

    def _check(self, report: Report) -> None:
        if report.revision > self.revision:
            self.problems.append(f"revision {report.revision} was never sent")
        if report.kv_used_extents > report.kv_extents:
            self.problems.append(f"uses more than it has: {report}")
        if report.revision == self.revision and self.granted:
            floor = max(self.granted, self.reports[-1].held_bytes if self.reports else 0)
            if report.held_bytes > floor:
                self.problems.append(f"holds {report.held_bytes} of {self.granted} granted")

    def _answer(self, report: Report) -> None:
        if self.answer == "silent" or report.revision != self.revision:
            return
        time.sleep(self.delay_s)
        extents = min(report.admission_extents, self.most, self.hello.shape.max_extents)
        if self.answer == "refuse" or extents <= report.kv_extents:
            self.connection.sendall(encode(Refusal(self.revision)))
            return
        self._allot(report, extents)

    def _allot(self, report: Report, extents: int, *, recall: bool = False) -> None:
        self.revision += 1
        shape = self.hello.shape
        self.granted = (
            shape.fixed_bytes
            + (shape.layers - report.layers_remapped) * shape.layer_bytes
            + extents * shape.extent_bytes
        )
        allotment = Allotment(
            self.revision,
            report.layers_remapped,
            report.stream_slots,
            extents,
            self.granted,
            self.open_extents,
            recall,
        )
        self.connection.sendall(encode(allotment))
