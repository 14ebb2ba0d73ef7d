"""One run of an experiment on several devices, under one policy and one seed: its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mirage.control.placement.steps import MoveVerb
from mirage.simulate import workload
from mirage.simulate.fleet.fleet import Fleet, LossCause
from mirage.simulate.fleet.moving import FleetMover
from mirage.simulate.fleet.setup import FleetSetup
from mirage.simulate.run import Metrics, measured, metrics, run_from


def run_fleet(
    setup: FleetSetup,
    policy: str,
    seed: int,
    *,
    skipping: bool = True,
    begun: Callable[[Fleet], None] = lambda fleet: None,
) -> Metrics:
    """Metrics of all devices together, named as by `mirage.simulate.run.run`; those of each device,
    and moves between devices.

    Lost requests (by cause) and retried ones are counted too. `skipping` simulates many equal steps
    in one go. `begun` is called with the fleet before the simulated time begins.
    """
    fleet = Fleet(setup, setup.variant(policy), seed, skipping=skipping)
    begun(fleet)
    start = workload.peak_end(setup, seed)
    run_from(fleet, start)
    engines = fleet.engines
    tenants = {t: [e for e in engines if e.name == t] for t in setup.placement}
    found = measured(policy, seed, tenants, start)
    for tenant, figures in found["tenants"].items():
        figures |= _lost(fleet.lost[tenant], fleet.retried[tenant])
    whole = _lost(sum(fleet.lost.values(), Counter()), fleet.retried.total())
    devices = {name: metrics(device.engines, start) for name, device in fleet.devices.items()}
    moved = {} if fleet.mover is None else _moved(fleet.mover)
    return {**found, **whole, **moved, "devices": devices}


def _moved(mover: FleetMover) -> Metrics:
    """Number of finished moves by verb, and bytes that were loaded for them."""
    verbs = (MoveVerb.START, MoveVerb.WAKE, MoveVerb.SLEEP, MoveVerb.STOP)
    return {f"placed_{verb}s": mover.done[verb] for verb in verbs} | {"placed_bytes": mover.loaded}


def _lost(causes: Counter[LossCause], retried: int) -> Metrics:
    by_cause = {f"lost_{cause}": causes[cause] for cause in LossCause}
    return {"lost": causes.total(), **by_cause, "retried": retried}
