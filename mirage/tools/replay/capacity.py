"""Measurement of the rate at which the machine can compute a workload's requests, before the
replay.

A separate server with several times the memory serves a part of the requests in a closed loop, so
that KV memory limits nothing and the processor is the only limit. The rate is the same for all
policies.
"""

from __future__ import annotations

import asyncio

from rich.console import Console

from mirage.config import Policy
from mirage.tools.replay.child import Server, ServerError
from mirage.tools.replay.client import Habits, Journal
from mirage.tools.replay.display import Display, display
from mirage.tools.replay.policies import ReplayVariant
from mirage.tools.replay.preparation import ReplayPlan
from mirage.tools.replay.run import PolicyRun, replay_on
from mirage.workload.dealing import TenantRequest
from mirage.workload.load import AMPLE, REQUESTS, at_once, capacity_per_s, evenly

NAME = "measuring the machine"


def measured(plan: ReplayPlan, console: Console) -> float:
    """Requests a second of this workload that the machine can compute, measured on a server that is
    started for it and ended afterwards. Raises `ServerError` if the server or a request fails, and
    `KeyboardInterrupt` if the measurement is interrupted.
    """
    calls = evenly(plan.calls, REQUESTS)
    log = plan.output / "serve-capacity.log"
    memory = plan.config.device.memory * AMPLE
    with (
        display(console, NAME, len(calls)) as shown,
        Server(plan.config_path, ReplayVariant(Policy.STATIC), log, memory) as server,
    ):
        run = asyncio.run(_run(plan, calls, server, shown))
    if run.interrupted:
        raise KeyboardInterrupt
    errors = [outcome.error for outcome in run.outcomes if outcome.error is not None]
    if errors:
        raise ServerError(f"{NAME}: {len(errors)} of {len(calls)} requests failed: {errors[0]}")
    return capacity_per_s(sorted(outcome.ended_s for outcome in run.outcomes), at_once(len(calls)))


async def _run(
    plan: ReplayPlan, calls: list[TenantRequest], server: Server, shown: Display
) -> PolicyRun:
    journal = Journal(changed=shown.running)
    return await replay_on(
        await server.ready(shown.starting),
        calls,
        plan.setting.seed,
        plan.timeout_s,
        journal,
        policy=NAME,
        death=server.death,
        habits=Habits(at_once(len(calls))),
    )
