"""Order in which weights of models are requested for a device."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import unquote

import pytest

from mirage.machines import weights
from mirage.machines.seam import DeviceAnswer, DeviceCall, MachineAway
from mirage.machines.weights import MachineWeights

pytestmark = pytest.mark.pure


class Devices:
    """Devices with these states of weights, which keep the models that were requested."""

    def __init__(self, **states: str) -> None:
        self.states, self.asked = states, list[str]()

    async def call(self, device: str, call: DeviceCall) -> DeviceAnswer:
        model = unquote(call.path.removeprefix("/weights/"))
        self.asked.append(model)
        if self.states[model] == "away":
            raise MachineAway("it is away")
        told = {"state": self.states[model], "why": "no file"}
        return DeviceAnswer(200, json.dumps(told).encode())


def brought(devices: Devices, said: list[str], times: int = 1) -> list[str]:
    kept = MachineWeights(devices, said.append)  # type: ignore[arg-type]

    async def main() -> None:
        for _ in range(times):
            await kept.bring("left", list(devices.states))

    asyncio.run(main())
    return devices.asked


def test_one_comes_at_a_time() -> None:
    said: list[str] = []
    assert brought(Devices(a="whole", b="coming", c="whole"), said, 2) == ["a", "b", "b"]
    assert said == ["device 'left': weights of a are there"]


def test_a_model_that_fails_does_not_hold_up_the_next_ones() -> None:
    said: list[str] = []
    assert brought(Devices(a="failed", b="whole", c="coming"), said, 2) == ["a", "b", "c", "c"]
    assert said[0] == "device 'left': weights of a do not come: no file"


def test_a_model_that_failed_is_requested_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "AGAIN_S", 0.0)
    assert brought(Devices(a="failed", b="coming"), [], 2) == ["a", "b", "a", "b"]


def test_a_device_that_is_away_is_asked_for_nothing_more() -> None:
    assert brought(Devices(a="away", b="whole"), []) == ["a"]
