"""The lease of a machine that was cut off expires: its servers end, and its model moves."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import pytest
from many_machines import LONG_S, bad, many_machines, served
from tethered import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rare,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

LEASE_S = 60.0


@pytest.mark.parametrize("machines", [3, 4])
def test_servers_without_agents_end_with_their_lease_and_their_model_is_served_elsewhere(
    machines: int,
) -> None:
    with many_machines(machines) as many:
        many.serves("m1", "--lease", f"{LEASE_S:g}")
        last, model, rest = many.names[-1], many.models[-1], many.names[:-1]
        machine, before = many.machine(last), many.servers(many.names[:-1])
        with many.asking(rest) as asking:
            begun = time.monotonic()
            assert many.nodes[last].stop() == 0, "Ctrl-C at the node"
            without = time.monotonic()
            until(lambda: not machine.servers(), "the device's server has ended", LONG_S)
            ended_s = time.monotonic() - without
            assert ended_s > LEASE_S - 5, "it served for its lease"
            for name in rest:
                until(
                    lambda name=name: many.answers(name, many.router(name), model),
                    f"its model is served elsewhere, for {name}",
                    LONG_S,
                )
            elsewhere = time.monotonic()
            elsewhere_s = time.monotonic() - without - ended_s
            until(lambda: not machine.spaces.processes(), "nothing is left there", LONG_S)
            empty_s = time.monotonic() - without
            assert not list(machine.folder.glob("mirage-*")), "no folder of a server is left"
            again = time.monotonic()
            many.nodes[last] = many.joins(last)
            many.whole()
            whole_s = time.monotonic() - again
        assert many.servers(rest) == before, "the other ones' processes serve all the time"
        count = sum(
            served(asking[name], one, begun, again) for name in rest for one in many.models[:-1]
        )
        for name in rest:
            gone = bad(asking[name].since(model, begun), without)
            other = [answer for answer in gone if "device_away" not in answer[2]]
            assert not other, other
            late = bad(asking[name].since(model, elsewhere), without)
            assert not late, "its own device takes over without a refusal"
            print(
                f"{name}: {model} is away {gone[0][0]:.1f} to {gone[-1][0]:.1f} s after its agent"
            )
        print(
            f"{machines} machines: the server ended {ended_s:.1f} s after its agent, its model was "
            f"served elsewhere {elsewhere_s:.1f} s later, no process after {empty_s:.1f} s; whole "
            f"{whole_s:.1f} s after its node's start; {count} requests for the other models, all "
            f"answered; load {os.getloadavg()[0]:.0f}"
        )
        many.ends()
