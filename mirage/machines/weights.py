"""Weights of models on machines: they are brought there before an engine needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal
from urllib.parse import quote

import msgspec

from mirage.machines.seam import DeviceCall, MachineAway, Machines

AGAIN_S = 30.0
"""Seconds before weights that failed to come are requested again."""


class _Weights(msgspec.Struct):
    """Fields that are used from the answer of ``POST /weights/MODEL``."""

    state: Literal["coming", "whole", "failed"]
    why: str = ""


class MachineWeights:
    """Weights on all machines, as reported by their device servers."""

    def __init__(self, machines: Machines, say: Callable[[str], None]) -> None:
        self._machines, self._say = machines, say
        self._there: set[tuple[str, str]] = set()
        self._failed: dict[tuple[str, str], float] = {}
        """Monotonic time before which a model is not requested again for a device."""

    async def are_there(self, device: str, models: Iterable[str]) -> bool:
        """True if the device's machine has the weights of all these models; missing ones are
        requested. Raises `StaleEpoch`.
        """
        return all([await self._is_there(device, model) for model in models])

    async def bring(self, device: str, models: Iterable[str]) -> None:
        """Request the weights of the first of these models that the device's machine is not known
        to have. Raises `StaleEpoch`.
        """
        for model in models:
            if (device, model) not in self._there and not await self._is_there(device, model):
                return

    async def _is_there(self, device: str, model: str) -> bool:
        key = device, model
        if time.monotonic() < self._failed.get(key, 0.0):
            return False
        try:
            call = DeviceCall("POST", f"/weights/{quote(model, safe='')}")
            answer = await self._machines.call(device, call)
            told = msgspec.json.decode(answer.body, type=_Weights)
        except (MachineAway, msgspec.DecodeError):
            return False
        if told.state == "failed":
            self._failed[key] = time.monotonic() + AGAIN_S
            self._say(f"device {device!r}: weights of {model} do not come: {told.why}")
        if told.state == "whole" and key not in self._there:
            self._there.add(key)
            self._say(f"device {device!r}: weights of {model} are there")
        return told.state == "whole"
