"""Single steps of a move of models, carried out at the devices' servers. If one fails, a replica
that was just started is removed again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb
from mirage.control.roster.states import BROKEN, LifeState
from mirage.serve.admin.forms import OperatorAct, TenantStatus
from mirage.serve.machine.calls import DeviceAway, DeviceRefused
from mirage.serve.machine.served_device import DeviceStanding, DirectedDevice
from mirage.serve.models.weights_progress import AheadState
from mirage.units import size

LOOK_S = 0.2
MORE_S = 60.0
"""Most seconds for an engine to end or to sleep, beyond the time for its requests."""
AT_REST = (LifeState.SLEEPING, LifeState.STOPPED)


class StepFailed(Exception):
    """A step that cannot be done; the message is the reason."""


class GaveWay(StepFailed):
    """A step that is not carried out, or not waited for, because an operator applies a
    configuration."""


class StepCarrier:
    """Executor of the steps of moves of models. A start may take `start_s` seconds, and running
    requests have `drain_s` seconds to end, both from `PlacementSection`."""

    def __init__(
        self, devices: Mapping[str, DirectedDevice], start_s: float, drain_s: float
    ) -> None:
        self._devices, self._start_s, self._drain_s = devices, start_s, drain_s
        self._gives_way = False

    def ruled(self, start_s: float, drain_s: float) -> None:
        """Use these times from the next step on; see the class."""
        self._start_s, self._drain_s = start_s, drain_s

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """Context in which steps that are not done yet fail with `GaveWay`.

        A step that waits for the end of a removed tenant waits no longer, and counts as done.
        """
        self._gives_way = True
        try:
            yield
        finally:
            self._gives_way = False

    async def carry(
        self,
        steps: Sequence[MoveStep],
        number: int,
        placement: DevicePlacement,
        tell: Callable[[str], None] = lambda words: None,
    ) -> str:
        """Carry out step `number` of `steps` towards `placement`; return words about the result.

        The words tell the bytes that were brought, or what happens only later, as when a server is
        away; they are empty in other cases. `tell` gets words about the progress. Raises
        `StepFailed` if the step cannot be done: unless it was to put a replica to sleep, all
        replicas that served before still serve then. Raises `GaveWay` while an operator applies a
        configuration.
        """
        step = steps[number]
        self._check_way()
        device = self._devices[step.device]
        before = steps[number - 1] if number else None
        after = steps[number + 1] if number + 1 < len(steps) else None
        try:
            if step.verb in (MoveVerb.BRING, MoveVerb.START):
                await self._comes(device)
            match step.verb:
                case MoveVerb.BRING:
                    return await self._brought(step, tell)
                case MoveVerb.START:
                    await device.takes(step.model)
                    rests = step.device not in placement.awake(step.model)
                    await self._ready(step, *(AT_REST if rests else ()))
                case MoveVerb.WAKE:
                    await device.calls.act(step.model, OperatorAct.WAKE)
                    await self._ready(step)
                case MoveVerb.ROUTE:
                    await self._routed(step, placement)
                case MoveVerb.DRAIN:
                    await self._others_serve(step, placement)
                    return await self._drain(step, sleeps=_is(after, MoveVerb.SLEEP, step))
                case MoveVerb.SLEEP:
                    if not _is(before, MoveVerb.DRAIN, step):
                        await device.calls.act(step.model, OperatorAct.SLEEP)
                    await self._until(step, self._drain_s + MORE_S, *AT_REST)
                case MoveVerb.STOP:
                    return await self._gone(step)
        except DeviceRefused as error:
            raise StepFailed(str(error)) from None
        except DeviceAway:
            raise StepFailed(f"the server of {step.device} is away") from None
        return ""

    async def back(self, steps: Sequence[MoveStep], failed: int) -> str:
        """Remove the replica that step `failed`, which failed, is about, if `steps` had started it;
        return words about the result.

        Nothing is undone if the failed step was about draining or stopping a replica.
        """
        step = steps[failed]
        opened = any(s.verb is MoveVerb.START and _is(s, s.verb, step) for s in steps[: failed + 1])
        closes = step.verb in (MoveVerb.DRAIN, MoveVerb.STOP)
        if not opened or closes:
            return "what served before does so still"
        return await self._devices[step.device].leaves_out(step.model)

    # -- single steps -------------------------------------------------------------------

    async def _comes(self, device: DirectedDevice) -> None:
        """Wait until the server of a device has started, or its machine was lost. Raises
        `StepFailed` after `start_s` seconds."""
        until = time.monotonic() + self._start_s
        while device.standing is DeviceStanding.COMES:
            self._check_way()
            if time.monotonic() > until:
                raise StepFailed(f"the server of {device.name} has not come")
            await asyncio.sleep(LOOK_S)

    async def _brought(self, step: MoveStep, tell: Callable[[str], None]) -> str:
        """Let the machine's store bring the weights, and wait until it has them; return words about
        the bytes brought.

        Returns an empty text immediately for a model that is not from the store. Raises
        `StepFailed` if the transfer fails.
        """
        device = self._devices[step.device]
        if (model := device.stored(step.model)) is None:
            return ""
        while True:
            self._check_way()
            told = await device.calls.brings(model)
            match told.state:
                case AheadState.WHOLE:
                    return f"{size(told.missing)} were brought"
                case AheadState.FAILED:
                    raise StepFailed(told.why)
            tell(f"{size(told.here)} of {size(told.missing)}")
            await asyncio.sleep(LOOK_S)

    async def _drain(self, step: MoveStep, *, sleeps: bool) -> str:
        device = self._devices[step.device]
        if sleeps:
            await device.calls.act(step.model, OperatorAct.DRAIN, self._drain_s)
            return ""
        try:
            await device.drops(step.model, self._drain_s)
        except DeviceAway:
            return f"the server of {step.device} is away, and comes back without {step.model}"
        return ""

    async def _gone(self, step: MoveStep) -> str:
        """Wait until a removed tenant has gone; return an empty text, or words about its end if
        that comes later. Raises `StepFailed` if it takes too long.
        """
        until = time.monotonic() + self._drain_s + MORE_S
        try:
            while await self._status(step) is not None:
                if self._gives_way:
                    return f"{step.model} ends when its requests have"
                if time.monotonic() > until:
                    raise StepFailed(f"{step.model} has not ended")
                await asyncio.sleep(LOOK_S)
        except DeviceAway:
            return f"the server of {step.device} is away: {step.model} ends when it is back"
        return ""

    async def _routed(self, step: MoveStep, placement: DevicePlacement) -> None:
        """Check that the device has the replica, and that it is ready if the placement wants it
        awake. There is nothing to switch: the router sends requests as soon as the device has the
        tenant.

        Raises `StepFailed` if the check fails.
        """
        status = await self._status(step)
        awake = step.device in placement.awake(step.model)
        if status is None or (awake and status.state != LifeState.READY):
            state = "not there" if status is None else status.state
            raise StepFailed(f"{step.model} is {state} on {step.device}")

    async def _others_serve(self, step: MoveStep, placement: DevicePlacement) -> None:
        """Check that another replica serves, if the placement has one awake. Raises `StepFailed` if
        none does."""
        others = [name for name in placement.awake(step.model) if name != step.device]
        states = [await self._state(step._replace(device=name)) for name in others]
        if others and LifeState.READY not in states:
            raise StepFailed(f"{step.model} does not serve on {', '.join(others)} any more")

    async def _state(self, step: MoveStep) -> str:
        try:
            status = await self._status(step)
        except DeviceAway:
            return ""
        return "" if status is None else status.state

    async def _ready(self, step: MoveStep, *others: LifeState) -> None:
        await self._until(step, self._start_s, LifeState.READY, *others)

    async def _until(self, step: MoveStep, limit_s: float, *wanted: LifeState) -> None:
        """Wait until the tenant is in one of the `wanted` states.

        Raises `StepFailed` if the tenant fails or is gone, or takes longer than `limit_s` seconds.
        """
        until = time.monotonic() + limit_s
        while True:
            self._check_way()
            status = await self._status(step)
            if status is None:
                raise StepFailed(f"{step.model} is not on {step.device} any more")
            if status.state in wanted:
                return
            if status.state in BROKEN:
                raise StepFailed(
                    f"{step.model} is {status.state} on {step.device}: {status.reason}"
                )
            if time.monotonic() > until:
                raise StepFailed(f"{step.model} is {status.state} after {limit_s:g} s")
            await asyncio.sleep(LOOK_S)

    def _check_way(self) -> None:
        """Raise `GaveWay` while an operator's apply waits for the steps to end (`giving_way`)."""
        if self._gives_way:
            raise GaveWay("an operator applies a configuration")

    async def _status(self, step: MoveStep) -> TenantStatus | None:
        told = await self._devices[step.device].calls.tenants()
        return next((one for one in told.tenants if one.name == step.model), None)


def _is(step: MoveStep | None, verb: MoveVerb, like: MoveStep) -> bool:
    if step is None:
        return False
    return (step.verb, step.model, step.device) == (verb, like.model, like.device)
