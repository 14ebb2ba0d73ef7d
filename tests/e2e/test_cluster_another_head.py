"""The head's machine and its tables are lost for good, and another machine becomes the head."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import pytest
from many_machines import LONG_S, many_machines, served
from tethered import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rare,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]


def test_another_machine_is_made_the_head_by_hand() -> None:
    with many_machines(3) as many:
        many.serves("m1")
        rest = ["m2", "m3"]
        before = many.servers(rest)
        with many.asking(rest) as asking:
            lost = time.monotonic()
            many.loses("m1")
            time.sleep(5.0)
            for name in rest:
                assert many.nodes[name].stop() == 0, "Ctrl-C at mirage node join"
            many.head, begun = "m2", time.monotonic()
            for name in rest:
                many.nodes[name] = many.joins(name)
            nodes_s = time.monotonic() - begun
            many.serves("m2")
            elsewhere_s = time.monotonic() - begun
            assert many.servers(rest) == before, "what serves was adopted"
            many.house.machine("m1")
            again = time.monotonic()
            many.nodes["m1"] = many.joins("m1")
            until(
                lambda: many.answers("m2", many.device("m1"), "model1"),
                "the machine that was lost serves its model again",
                LONG_S,
            )
            many.whole()
            whole_s = time.monotonic() - again
        assert many.servers(rest) == before
        count = sum(
            served(asking[name], model, lost, again)
            for name in rest
            for model in ("model2", "model3")
        )
        print(
            f"the head is lost for good: both nodes {nodes_s:.1f} s after another head was begun "
            f"by hand, all models served after {elsewhere_s:.1f} s; whole {whole_s:.1f} s after "
            f"the machine joined it; {count} requests meanwhile, all answered; load "
            f"{os.getloadavg()[0]:.0f}"
        )
        many.ends()
