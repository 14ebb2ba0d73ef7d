"""Choice of a replica: affinity within bounds, wakes, quarantine, retries."""

from __future__ import annotations

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.control.roster.states import LifeState
from mirage.control.routes import quarantine
from mirage.control.routes.quarantine import ReplicaQuarantine
from mirage.control.routes.rendezvous import bounded, bounds, ranking
from mirage.control.routes.replica import Replica, RouteTarget, known_rates
from mirage.control.routes.routing import (
    RequestFate,
    RouteAsk,
    RouteChoice,
    RouteRefused,
    RouteRules,
    Routes,
    affinity_key,
)
from mirage.serve.ends import suspects
from tests.examples import examples

pytestmark = pytest.mark.pure
S = LifeState
ASK = RouteAsk("a", "body")


def replica(
    device: str, in_flight: int = 0, rate: float = 1.0, state: LifeState = S.READY, **more: float
) -> Replica:
    target = RouteTarget("a", device, f"/run/{device}", state)
    return Replica(target, in_flight, rate)._replace(**more)


def chosen(choice: RouteChoice) -> str:
    assert choice.replica is not None, choice
    return choice.replica.device


# -- rendezvous and bounds --------------------------------------------------------------


def test_a_ranking_is_the_same_everywhere() -> None:
    """The ranking of devices for a session is this one in each process and on each machine,
    whatever the order of the devices.
    """
    assert ranking("session 1", ["gpu0", "gpu1", "gpu2"]) == ["gpu1", "gpu0", "gpu2"]
    assert ranking("session 1", ["gpu2", "gpu1", "gpu0"]) == ["gpu1", "gpu0", "gpu2"]
    assert ranking("\ud800", ["gpu0"]) == ["gpu0"], "what a client sent is any text"


@examples(2000)
@given(st.lists(st.text(min_size=1), min_size=2, max_size=12, unique=True), st.integers(0, 2**32))
def test_keys_move_from_a_replica_that_goes_and_from_no_other(names: list[str], seed: int) -> None:
    gone, *left = names
    for number in range(20):
        key = f"{seed} {number}"
        before, after = ranking(key, names), ranking(key, left)
        assert after == [name for name in before if name != gone]


@pytest.mark.parametrize("count", [2, 3, 8, 40])
def test_a_replica_that_goes_or_comes_moves_its_part_of_the_keys(count: int) -> None:
    names = [f"gpu{i}" for i in range(count)]
    keys = [f"session {i}" for i in range(4000)]
    first = [ranking(key, names)[0] for key in keys]
    moved = sum(a != ranking(k, names[:-1])[0] for a, k in zip(first, keys, strict=True))
    part = len(keys) / count
    assert abs(moved - part) < 5 * part**0.5
    assert max(Counter(first).values()) < part + 5 * part**0.5


@examples(2000)
@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=8),
    st.floats(1.0, 3.0),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_no_replica_has_more_than_its_bound(
    rates: list[float], spread: float, keys: int, seed: int
) -> None:
    """Requests with few different keys come and end at random. Each goes to a replica that has
    fewer than its bound at that moment.
    """
    random = Random(seed)
    by_name = {f"d{i}": rate for i, rate in enumerate(rates)}
    loads = dict.fromkeys(by_name, 0)
    for _ in range(60):
        if random.random() < 0.3 and (busy := [n for n, load in loads.items() if load]):
            loads[random.choice(busy)] -= 1
            continue
        most = bounds(loads, by_name, spread)
        name = bounded(f"k{random.randrange(keys)}", loads, by_name, spread)
        loads[name] += 1
        part = by_name[name] / sum(by_name.values())
        assert loads[name] <= most[name] <= ceil(spread * sum(loads.values()) * part + 1e-8)


def test_a_session_stays_and_spills_in_the_order_of_its_ranking() -> None:
    ask = ASK._replace(affinity=affinity_key("s", "p"))
    order = ranking("session s", ["x", "y", "z"])
    routes, loads = Routes(RouteRules(spread=1.25)), dict.fromkeys("xyz", 0)
    found = []
    for _ in range(30):
        name = chosen(routes.choose(ask, [replica(d, n) for d, n in loads.items()], 0.0))
        loads[name] += 1
        found.append(name)
    assert found[0] == order[0]
    assert [loads[name] for name in order] == [13, 13, 4]


def test_a_session_comes_before_a_prefix_and_is_never_equal_to_one() -> None:
    assert affinity_key("x", "y") == affinity_key("x", "z") != affinity_key("", "x")
    assert affinity_key("", "") == ""


# -- expected wait ----------------------------------------------------------------------


def test_without_a_key_the_shortest_wait_is_chosen() -> None:
    routes = Routes()
    assert chosen(routes.choose(ASK, [replica("x", 4, 1.0), replica("y", 6, 3.0)], 0.0)) == "y"
    assert chosen(routes.choose(ASK, [replica("x", 1, 1.0), replica("y", 6, 3.0)], 0.0)) == "x"
    choice = routes.choose(ASK, [replica("y", 6, 3.0)], 0.0)
    assert choice.wait_s == 2.0 and not choice.wakes


def test_an_unknown_rate_is_the_mean_of_the_others() -> None:
    three = [replica("x", rate=0.0), replica("y", rate=3.0), replica("z", rate=1.0)]
    assert known_rates(three) == {"x": 2.0, "y": 3.0, "z": 1.0}
    assert known_rates([replica("x", rate=0.0)]) == {"x": 1.0}
    four = [replica("x", 1, 0.0), replica("a", 9, 0.1), replica("b", 9, 0.2), replica("c", 9, 0.3)]
    there, back = (Routes().choose(ASK, each, 0.0) for each in (four, four[::-1]))
    assert there == back, "sums of other orders differ in their last digit"


def test_a_closed_route_and_one_that_was_tried_are_passed_over() -> None:
    both = [replica("x"), replica("y", 5)]
    routes = Routes()
    assert chosen(routes.choose(ASK, [both[0]._replace(open=False), both[1]], 0.0)) == "y"
    assert chosen(routes.choose(ASK._replace(tried=frozenset("x")), both, 0.0)) == "y"
    refused = routes.choose(ASK._replace(tried=frozenset("xy")), both, 0.0)
    assert refused.replica is None and refused.refused is RouteRefused.NO_REPLICA


def test_a_replica_that_drains_or_has_failed_is_none() -> None:
    gone = [replica("x", state=S.DRAINING), replica("y", state=S.FAILED)]
    assert Routes().choose(ASK, gone, 0.0).refused is RouteRefused.NO_REPLICA


# -- wakes ------------------------------------------------------------------------------


def test_nothing_wakes_while_one_serves() -> None:
    both = [replica("x", state=S.SLEEPING, comes_s=0.1), replica("y", 90)]
    choice = Routes().choose(ASK._replace(affinity="session s"), both, 0.0)
    assert chosen(choice) == "y" and not choice.wakes


def test_the_wake_that_is_over_first_is_chosen_and_of_equals_who_takes_least() -> None:
    routes = Routes()
    cold = replica("x", state=S.STOPPED, comes_s=40.0)
    slow = replica("y", state=S.SLEEPING, comes_s=0.9)
    fast = replica("z", state=S.SLEEPING, comes_s=0.3)
    choice = routes.choose(ASK, [cold, slow, fast], 0.0)
    assert chosen(choice) == "z" and choice.wakes and choice.wait_s == 0.3
    takes = [fast._replace(yields=5), replica("y", state=S.SLEEPING, comes_s=0.3)]
    assert chosen(routes.choose(ASK, takes, 0.0)) == "y"


def test_requests_wait_for_the_one_that_comes_and_wake_no_other() -> None:
    coming = replica("y", 20, state=S.WAKING, comes_s=0.2)
    other = replica("x", state=S.SLEEPING, comes_s=0.3)
    choice = Routes().choose(ASK, [other, coming], 0.0)
    assert chosen(choice) == "y" and not choice.wakes and choice.wait_s == 20.2
    equal = replica("y", state=S.WAKING, comes_s=0.3)
    assert chosen(Routes().choose(ASK, [other, equal], 0.0)) == "y"
    starting = replica("y", state=S.STARTING, comes_s=30.0)
    assert chosen(Routes().choose(ASK, [other, starting], 0.0)) == "x", "a wake is over before"


# -- quarantine and retries -------------------------------------------------------------


def test_the_times_are_those_of_one_engine() -> None:
    assert (quarantine.REFUSED_S, quarantine.SUSPECTED_S, quarantine.WELL_S, quarantine.MOST) == (
        suspects.REFUSED_S,
        suspects.SUSPECTED_S,
        suspects.WELL_S,
        suspects.MOST,
    )


def test_a_body_that_may_have_ended_an_engine_goes_to_no_other_until_that_is_judged() -> None:
    routes, both = Routes(), [replica("x"), replica("y")]
    known = routes.quarantine
    known.begins("a", "body")
    known.breaks("a", ["body"], 10.0)
    known.ends("a", "body", 10.0, well=False)
    assert routes.choose(ASK, both, 11.0).refused is RouteRefused.SUSPECT
    assert not routes.may_retry(ASK, RequestFate.BROKE_OFF, 11.0, begun=False)
    assert chosen(routes.choose(ASK._replace(body_digest="other"), both, 11.0))
    assert chosen(routes.choose(ASK._replace(tenant="b"), both, 11.0))
    known.judged("a", ["body"], [], 12.0, known=False)
    assert routes.choose(ASK, both, 12.0).refused is None
    assert routes.may_retry(ASK, RequestFate.ENDED_OUTSIDE, 12.0, begun=False)


def test_an_end_that_nobody_judges_holds_for_a_while() -> None:
    routes = Routes()
    routes.quarantine.breaks("a", ["body"], 10.0)
    held = routes.choose(ASK, [replica("x")], 12.0)
    assert held.refused is RouteRefused.SUSPECT and held.wait_s == quarantine.UNJUDGED_S - 2
    assert chosen(routes.choose(ASK, [replica("x")], 10.0 + quarantine.UNJUDGED_S))


def test_a_culprit_is_refused_by_all_replicas() -> None:
    routes, both = Routes(), [replica("x"), replica("y")]
    routes.quarantine.judged("a", ["body", "other"], ["body"], 10.0, known=True)
    refused = routes.choose(ASK, both, 20.0)
    assert refused.refused is RouteRefused.CULPRIT and refused.wait_s == quarantine.REFUSED_S - 10
    assert chosen(routes.choose(ASK, both, 10.0 + quarantine.REFUSED_S))


def test_a_suspect_runs_on_one_replica_alone_where_it_ends_least() -> None:
    routes = Routes()
    both = [replica("x", 3, 9.0), replica("y", 1, 1.0)]
    known = routes.quarantine
    known.judged("a", ["body", "other"], ["body", "other"], 10.0, known=False)
    assert not routes.may_retry(ASK, RequestFate.UNREAD, 11.0, begun=False)
    ask = ASK._replace(affinity="session s")
    assert chosen(routes.choose(ask, both, 11.0)) == "y"
    known.begins("a", "body")
    assert routes.choose(ask, both, 11.0).refused is RouteRefused.SUSPECT
    known.ends("a", "body", 12.0, well=True)
    assert not known.suspects("a", "body", 12.0) and known.suspects("a", "other", 12.0)


def test_a_probe_that_is_always_there_is_not_held_back() -> None:
    routes = Routes()
    routes.quarantine.begins("a", "body")
    routes.quarantine.ends("a", "body", 5.0, well=True)
    routes.quarantine.breaks("a", ["body"], 10.0)
    assert chosen(routes.choose(ASK, [replica("x")], 11.0))


@pytest.mark.parametrize("fate", RequestFate)
def test_a_request_is_sent_again_before_the_first_byte_and_if_no_engine_can_have_died_of_it(
    fate: RequestFate,
) -> None:
    routes, tried = Routes(), ASK._replace(tried=frozenset("x"))
    again = fate is not RequestFate.BROKE_OFF
    assert routes.may_retry(tried, fate, 0.0, begun=False) is again
    assert not routes.may_retry(tried, fate, 0.0, begun=True)
    two = ASK._replace(tried=frozenset("xy"))
    assert routes.may_retry(two, fate, 0.0, begun=False) is again
    assert not routes.may_retry(ASK._replace(tried=frozenset("xyz")), fate, 0.0, begun=False)


def test_what_is_remembered_has_a_bound() -> None:
    known = ReplicaQuarantine()
    for number in range(quarantine.MOST + 100):
        known.judged("a", [], [f"b{number}"], 1.0, known=False)
    assert not known.suspects("a", "b0", 2.0)
    assert known.suspects("a", f"b{quarantine.MOST + 99}", 2.0)


class Killed:
    """A router with replicas, to which two bodies are sent: "killer" ends each engine that computes
    it, "good" is answered.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.routes, self.now = Random(seed), Routes(), 0.0
        self.ended = 0

    def request(self, body: str, devices: list[Replica]) -> None:
        ask = RouteAsk("a", body)
        while True:
            choice = self.routes.choose(ask, devices, self.now)
            if choice.replica is None:
                return
            known = self.routes.quarantine
            known.begins("a", body)
            if body != "killer":
                known.ends("a", body, self.now, well=True)
                return
            self.ended += 1
            known.breaks("a", [body], self.now)
            known.ends("a", body, self.now, well=False)
            judged = self.random.random() < 0.5
            if judged:
                known.judged("a", [body], [body], self.now, known=True)
            ask = ask._replace(tried=ask.tried | {chosen(choice)})
            if not self.routes.may_retry(ask, RequestFate.BROKE_OFF, self.now, begun=False):
                return


@examples(400)
@given(st.integers(0, 2**32))
def test_a_killer_that_comes_again_and_again_ends_few_engines(seed: int) -> None:
    """In 100 s a killer is sent again and again. It ends an engine only while no end has been
    judged yet, or when its refusal has expired.
    """
    world = Killed(seed)
    devices = [replica(f"d{i}") for i in range(8)]
    for _ in range(100):
        world.now += 1.0
        world.request(world.random.choice(["killer", "good"]), devices)
    assert world.ended <= 1 + 100 / quarantine.UNJUDGED_S


@examples(2000)
@given(st.integers(0, 2**32))
def test_any_choice_is_open_untried_able_and_the_same_again(seed: int) -> None:
    random = Random(seed)
    replicas = [
        replica(
            f"d{i}",
            random.randrange(20),
            random.choice((0.0, random.random())),
            random.choice(list(LifeState)),
            comes_s=random.random(),
            open=random.random() < 0.8,
        )
        for i in range(random.randrange(7))
    ]
    tried = frozenset(r.device for r in replicas if random.random() < 0.2)
    ask = RouteAsk("a", "body", random.choice(("", "session 1", "prefix 2")), tried)
    choice = Routes().choose(ask, replicas, 0.0)
    assert choice == Routes().choose(ask, random.sample(replicas, len(replicas)), 0.0)
    able = [r for r in replicas if r.open and r.device not in tried]
    if choice.replica is None:
        assert all(r.target.state in (S.DRAINING, S.FAILED) for r in able)
    else:
        assert choice.replica in able and choice.wait_s >= 0
        if any(r.target.state is S.READY for r in able):
            assert choice.replica.target.state is S.READY
