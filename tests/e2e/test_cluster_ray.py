"""Failures of a Ray cluster, one at a time, and the device servers' answers meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from ray_house import ray_house
from seam_contract import facts_kept, news_told, started_twice
from supervised import assert_gone
from tethered import ask, family, order, until

from mirage.machines.epoch import claimed_epoch, this_claimant
from mirage.machines.seam import DeviceCall, StaleEpoch
from mirage.machines.tether_messages import TetherTold

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.one_of("clusters")]


@contextmanager
def asking(told: TetherTold, model: str) -> Iterator[list[tuple[float, int]]]:
    """Send requests one after the other while the block runs; gives a list with time and status of
    each answer (0: none).
    """
    answers: list[tuple[float, int]] = []
    ends = False

    def work() -> None:
        while not ends:
            try:
                status = ask(told.url, model)[0]
            except OSError:
                status = 0
            answers.append((time.monotonic(), status))
            time.sleep(0.05)

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(work)
        try:
            yield answers
        finally:
            ends = True
    asked.result()


def test_failures_of_the_cluster_are_not_those_of_what_serves(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_house(short, 2, monkeypatch) as house:
        machines = house.machines
        machines.epoch = house.do(claimed_epoch(machines, this_claimant("m1"), 0))
        left = house.start("left", "m1", "a")
        right = house.start("right", "m2", "b", lease_s=6.0)
        assert {one.name for one in house.do(machines.there())} == {"m1", "m2"}
        gone = family(left, "a") | family(right, "b")
        measured: dict[str, tuple[float, int]] = {}

        def whole(row: str, seconds: float, answers: list[tuple[float, int]]) -> None:
            wrong = [status for _, status in answers if status != 200]
            assert not wrong and answers, (row, wrong)
            measured[row] = (seconds, len(answers))
            assert house.ready("left").pid == left.pid, row

        with asking(left, "a") as answers:
            before = house.agent("left")
            psutil.Process(before).kill()
            seconds = house.new_agent("left", before)
        whole("agent killed", seconds, answers)

        with asking(left, "a") as answers:
            before = house.agent("left")
            house.lose("m1")
            house.join("m1")
            seconds = house.new_agent("left", before)
        whole("raylet killed", seconds, answers)

        with asking(left, "a") as answers:
            before = house.agent("left")
            frozen = house.raylet("m1")
            frozen.suspend()
            until(lambda: {o.name for o in house.do(machines.there())} == {"m2"}, "it is lost")
            time.sleep(2.0)
            frozen.resume()
            thawed = time.monotonic()
            house.nodes["m1"].all_processes["raylet"][0].process.wait(60)
            house.join("m1")
            house.new_agent("left", before)
            seconds = time.monotonic() - thawed
        whole("raylet frozen and thawed", seconds, answers)

        for away_s in (3.0, 25.0):
            with asking(left, "a") as answers:
                house.cluster.head_node.kill_gcs_server()
                time.sleep(away_s)
                house.cluster.head_node.start_gcs_server()
                back = time.monotonic()
                known = until(lambda: house.told("left"), "its agent answers")
                epochs = house.do(machines.facts("epoch:"))
                seconds = time.monotonic() - back
            assert known.pid == left.pid and [*epochs] == ["epoch:1"]
            whole(f"GCS away for {away_s:g} s", seconds, answers)

        with asking(left, "a") as answers:
            begun = time.monotonic()
            machines.epoch = house.do(claimed_epoch(machines, this_claimant("m1"), 1))
            given = order(house.folder / "models", "left", "a")
            house.do(machines.start("left", "m1", msgspec.json.encode(given)))
            call = DeviceCall("GET", "/tenants")
            assert house.do(machines.call("left", call)).status == 200
            seconds = time.monotonic() - begun
            machines.epoch = 1
            with pytest.raises(StaleEpoch):
                house.do(machines.call("left", call))
            with pytest.raises(StaleEpoch):
                house.do(machines.start("left", "m1", msgspec.json.encode(given)))
            machines.epoch = 2
        whole("another controller", seconds, answers)

        begun = time.monotonic()
        house.lose("m2")
        until(lambda: {o.name for o in house.do(machines.there())} == {"m1"}, "it is lost")
        lost_s = time.monotonic() - begun
        assert ask(right.url, "b")[0] == 200, "a machine that lost its raylet alone serves"
        until(lambda: not psutil.pid_exists(right.pid), "its lease is over")
        measured["lease of 6 s over"] = (time.monotonic() - begun, 0)
        measured["machine missed"] = (lost_s, 0)

        house.do(machines.end("left"))
        assert_gone(gone)
        for row, (seconds, count) in measured.items():
            print(f"{row}: whole after {seconds:.1f} s, {count} requests meanwhile, all answered")
    assert not list(short.iterdir())


def test_a_cluster_keeps_the_promises_of_machines(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_machines_contract.py` has the same for this machine alone."""
    with ray_house(short, 1, monkeypatch) as house:
        machines = house.machines
        house.do(facts_kept(machines))
        folder = house.folder / "models"
        orders = [order(folder, "x", *tenants) for tenants in (("a",), ("a", "b"))]
        given = msgspec.json.encode(orders[0]), msgspec.json.encode(orders[1])
        house.do(started_twice(machines, "x", "m1", given))

        loses, returns = (lambda: house.lose("m1")), (lambda: house.join("m1"))
        house.do(news_told(machines, machines.keep, "x", loses, returns, seen_s=3.0))
        until(lambda: house.told("x"), "its agent answers")
        gone = family(house.ready("x"), "a", "b")
        house.do(machines.end("x"))
        assert_gone(gone)
    assert not list(short.iterdir())
