"""Health of the device that all engines share: it may fail, and may answer again later.

While it has failed no engine starts, and running ones are ended. One line is logged about that, and
a fresh process tries the device after ten minutes, then after 20, 40 and every 60.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Set
from typing import Any

from mirage.serve.ends.restarts import FORGIVEN_AFTER_S, REST_S, Restarts
from mirage.serve.health.device_rule import DeviceRecord
from vmm.faults import Fault

ANSWER_S = 30.0
"""Seconds for the answer of a fresh process; a driver that hangs never gives one."""

Asked = Callable[[], Awaitable[str]]
"""Function that lets a fresh process try the device. It returns the reason why that process cannot
use the device; empty if it can.
"""


async def _no_question() -> str:
    return ""


class DeviceHealth:
    """Health of one device. `reason` is empty while it is healthy.

    `failing` is called with the reason when the device fails. `rest_s` is the number of seconds
    from a failure to the first new try.
    """

    def __init__(
        self,
        name: str = "the device",
        ask: Asked = _no_question,
        *,
        failing: Callable[[str], None] = lambda reason: None,
        rest_s: float = REST_S,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._ask, self._say, self._clock = name, ask, say, clock
        self._failing = failing
        self.reason = ""
        self._record = DeviceRecord()
        self._rest_s = rest_s
        self._rests = Restarts(rest_s=rest_s)
        self._again = self._well_since = clock()
        self._well, self._failed = asyncio.Event(), asyncio.Event()
        self._well.set()

    def met(self, tenant: str, fault: Fault, bodies: Set[str] = frozenset()) -> None:
        """Note that an engine of `tenant` ended by `fault`, perhaps over a request in `bodies`.

        `bodies` are digests of requests' bodies.
        """
        if self.reason:
            return
        if why := self._record.met(tenant, fault, bodies, self._clock()):
            self._fails(why)

    async def look(self, tenant: str) -> None:
        """Have a fresh process try the device, because an engine of `tenant` ended in a way that
        the device may have caused. The device counts as failed if that process cannot use it.
        """
        if self.reason:
            return
        why = await self._ask()
        if why and not self.reason:  # it may have failed meanwhile
            self._fails(f"{why} (asked after the end of tenant {tenant!r})")

    def _fails(self, why: str) -> None:
        self.reason = f"{self._name} has failed: {why}"
        self._record = DeviceRecord()
        if self._clock() - self._well_since > FORGIVEN_AFTER_S:
            self._rests = Restarts(rest_s=self._rest_s)
        rest_s = self._rest()
        self._say(f"{self.reason}; no model is served, it is asked again in {rest_s:g} s")
        self._well.clear()
        self._failed.set()
        self._failing(self.reason)

    def _rest(self) -> float:
        rest_s = self._rests.rest().seconds
        self._again = self._clock() + rest_s
        return rest_s

    @property
    def wait_s(self) -> float:
        """Seconds until a failed device is tried again."""
        return max(0.0, self._again - self._clock())

    async def well(self) -> None:
        """Return immediately unless the device has failed, else when it works again."""
        await self._well.wait()

    async def keep(self) -> None:
        """Try the device again and again whenever it has failed. Never returns."""
        while True:
            await self._failed.wait()
            await asyncio.sleep(self.wait_s)
            if why := await self._ask():
                self._say(
                    f"{self._name} does not answer ({why}), asked again in {self._rest():g} s"
                )
                continue
            self._say(f"{self._name} answers again: engines start")
            self.reason, self._well_since = "", self._clock()
            self._failed.clear()
            self._well.set()

    def told(self, *, reasons: bool = True) -> dict[str, Any]:
        """State of the device for ``/health`` and ``/mirage/state``: ok or failed, and with
        `reasons` the reason of the failure."""
        if not self.reason:
            return {"status": "ok"}
        return {"status": "failed"} | ({"reason": self.reason} if reasons else {})


async def asked(program: tuple[str, ...]) -> str:
    """Reason why the program cannot use the device, empty if it can: its first line of output, or
    its exit status if it printed none, or that it took longer than `ANSWER_S` seconds.

    `program` are arguments of Python.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"a fresh process could not use it in {ANSWER_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode == 0:
        return ""
    words = said.decode(errors="replace").strip().splitlines()
    ended = f"a fresh process that used it ended with exit status {process.returncode}"
    return words[0] if words else ended
