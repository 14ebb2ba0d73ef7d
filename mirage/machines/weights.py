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

    async def bring(self, device: str, models: Iterable[str]) -> None:
        """Have the device's server bring the weights of these models to its machine: one after the
        other, up to the first whose weights are still coming. A model whose weights failed to come
        is left out for `AGAIN_S` seconds. Raises `StaleEpoch` if a newer controller has given
        orders.
        """
        for model in models:
            key = device, model
            if key in self._there or time.monotonic() < self._failed.get(key, 0.0):
                continue
            if not await self._is_settled(device, model):
                return

    async def _is_settled(self, device: str, model: str) -> bool:
        """Have the device's server bring a model's weights; return True if they are whole or have
        failed, False if they are coming or the server does not answer.
        """
        try:
            call = DeviceCall("POST", f"/weights/{quote(model, safe='')}")
            answer = await self._machines.call(device, call)
            told = msgspec.json.decode(answer.body, type=_Weights)
        except (MachineAway, msgspec.DecodeError):
            return False
        if told.state == "failed":
            self._failed[device, model] = time.monotonic() + AGAIN_S
            self._say(f"device {device!r}: weights of {model} do not come: {told.why}")
        elif told.state == "whole":
            self._there.add((device, model))
            self._say(f"device {device!r}: weights of {model} are there")
        return told.state != "coming"
