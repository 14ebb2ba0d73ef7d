"""Networks of three and four machines that are partitioned, and connected again."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import pytest
from many_machines import LONG_S, known_away, many_machines, served
from tethered import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rare,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra cluster is not installed"),
]

CUT_S = 40.0


@pytest.mark.parametrize(
    ("machines", "apart", "where"),
    [
        pytest.param(3, ["m3"], "m1", id="one of three"),
        pytest.param(3, ["m2", "m3"], "m1", id="the head of three"),
        pytest.param(4, ["m4"], "m1", id="one of four"),
        pytest.param(4, ["m3", "m4"], "m1", id="two and two"),
        pytest.param(4, ["m3", "m4"], "m3", id="head and controller apart"),
    ],
)
def test_a_network_falls_apart_and_both_sides_serve_what_they_have(
    machines: int, apart: list[str], where: str
) -> None:
    with many_machines(machines) as many:
        many.serves(where)
        before = many.servers()
        sides = [name for name in many.names if name not in apart], apart
        placed = where not in apart
        with many.asking() as asking:
            cut = time.monotonic()
            many.house.cut(*apart)
            if placed:
                lost = [model_of(name) for name in apart]
                for model in lost:
                    until(
                        lambda m=model: many.answers("m1", many.router("m1"), m),
                        f"the head's side serves {model}",
                    )
                elsewhere_s = time.monotonic() - cut
                print(f"{', '.join(lost)} served by the head's side after {elsewhere_s:.1f} s")
            time.sleep(max(0.0, cut + CUT_S - time.monotonic()))
            ends = time.monotonic()
            many.house.heal(*apart)
            healed = time.monotonic()
            for name in apart:
                many.nodes[name].says(f"{name}: runs again", LONG_S)
            nodes_s = time.monotonic() - healed
            if not placed:
                assert many.controller.ended(60) == 1, "a controller ends with its node"
                many.serves(where)
            many.whole()
            whole_s = time.monotonic() - healed
        assert many.servers() == before, "the same processes serve"
        counts = [
            sum(served(asking[name], model_of(one), cut, ends) for name in side for one in side)
            for side in sides
        ]
        known = [
            known_away(asking[name], model_of(one), cut, ends)
            for side, other in (sides, sides[::-1])
            if side == apart or not placed
            for name in side
            for one in other
        ]
        print(
            f"{len(sides[0])} and {len(sides[1])} machines for {ends - cut:.0f} s, controller on "
            f"{where}: away is known after {max(known):.1f} s; nodes {nodes_s:.1f} s and whole "
            f"{whole_s:.1f} s after it healed; {counts} requests on both sides for their own "
            f"models, all answered; load {os.getloadavg()[0]:.0f}"
        )
        many.ends()


def model_of(machine: str) -> str:
    return f"model{machine[1:]}"


PAUSE_S, SILENT_S = 8.0, 15


def test_a_pause_that_the_file_allows_for_breaks_no_stream_and_moves_nothing() -> None:
    with many_machines(2, http={"silent_s": SILENT_S}) as many:
        many.serves("m1")
        before, router = many.servers(), many.router("m1")
        words = {"prompt": "drip", "stream": True, "max_tokens": 200}
        stream = many.asks("m1", router, "model2", 90.0, **words)
        time.sleep(3.0)
        many.house.cut("m2")
        cut = time.monotonic()
        time.sleep(1.0)
        waits = many.asks("m1", router, "model2", 90.0)
        time.sleep(max(0.0, cut + PAUSE_S - time.monotonic()))
        assert not waits.done() and not stream.done()
        many.house.heal("m2")
        answer, whole = waits.result(), stream.result()
        assert answer.status == 200 and answer.at > cut + PAUSE_S, answer
        assert whole.told.count("data: ") == 201 and "error" not in whole.told, whole.told[-500:]
        many.nodes["m2"].says("m2: runs again", LONG_S)
        many.whole()
        assert "is lost" not in many.controller.text, many.controller.text
        assert many.servers() == before
        print(f"answered {answer.at - cut - PAUSE_S:.1f} s after a pause of {PAUSE_S:g} s")
        many.ends()
