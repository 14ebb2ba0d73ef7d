"""Blame for the end of an engine: the culprit is found soon, and no request is refused for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.serve.ends.ending import Ending, Evidence
from mirage.serve.ends.suspects import (
    LATELY_S,
    MOST,
    REFUSED_S,
    SUSPECTED_S,
    WELL_S,
    RequestFacts,
    Suspects,
)

pytestmark = pytest.mark.pure

FAULT = Ending(status=-11)
HANG = Ending("engine", hang="no sign of life for 30 s")
KILLED = Ending(status=-9)
UNKNOWN = Ending()


def request(name: str) -> RequestFacts:
    return RequestFacts("/v1/completions", "m", name, 100)


def begin(suspects: Suspects, *names: str) -> list[int]:
    return [suspects.begins(request(name)) for name in names]


def test_the_only_one_is_the_culprit_and_refused_for_a_while() -> None:
    made = Suspects()
    (number,) = begin(made, "x")
    blame = made.engine_ended(FAULT, 10.0)
    assert blame.culprit == request("x") and made.blame(number) == blame
    made.ends(number, 10.1, well=False)
    refused = made.refuses("x", 11.0)
    assert refused is not None and refused.known and refused.wait_s == REFUSED_S - 1
    assert made.refuses("y", 11.0) is None
    assert made.refuses("x", 10.0 + REFUSED_S) is None


@pytest.mark.parametrize("ending", [KILLED, UNKNOWN])
def test_an_end_from_outside_or_unknown_says_nothing_of_a_request(ending: Ending) -> None:
    made = Suspects()
    (number,) = begin(made, "x")
    for now in (0.0, 1.0, 2.0):
        blame = made.engine_ended(ending, now)
        assert blame.culprit is None and blame.bodies == frozenset()
        assert made.refuses("x", now) is None
        begin(made, "x")
    assert made.blame(number) is not None, "its client hears what happened"


@pytest.mark.parametrize("second", [HANG, FAULT])
def test_one_hang_blames_nobody_and_a_second_with_the_same_request_blames_it(
    second: Ending,
) -> None:
    made = Suspects()
    begin(made, "x")
    assert made.engine_ended(HANG, 0.0).culprit is None
    assert made.refuses("x", 1.0) is None
    begin(made, "x", "new")
    assert made.engine_ended(second, 2.0).culprit == request("x")
    assert made.refuses("x", 3.0) is not None and made.refuses("new", 3.0) is None


def test_a_request_whose_client_left_long_before_its_hang_was_noticed_was_there() -> None:
    made = Suspects(hang_s=30.0)
    for now in (0.0, 100.0):
        bad, _innocent = begin(made, "bad", f"innocent {now}")
        made.ends(bad, now + 10, well=False)
        blame = made.engine_ended(HANG, now + 31)
    assert blame.culprit == request("bad")
    (long_ago,) = begin(made, "other")
    made.ends(long_ago, 200.0, well=False)
    assert made.engine_ended(FAULT, 200.0 + LATELY_S).there == ()


def test_what_was_answered_well_is_no_culprit_at_once() -> None:
    """A probe with the same body was answered well, and is alone with the engine when that ends by
    itself. It is blamed only if the engine ends twice without a good answer between.
    """
    made, now = Suspects(), 0.0
    for _ in range(5):
        (number,) = begin(made, "probe")
        made.ends(number, now, well=True)
        begin(made, "probe")
        blame = made.engine_ended(FAULT, now + 1)
        assert blame.culprit is None and blame.bodies == frozenset()
        assert made.refuses("probe", now + 2) is None
        now += 100
    begin(made, "probe")
    assert made.engine_ended(FAULT, now).culprit == request("probe"), "twice, and never well"
    begin(made, "probe")
    assert made.engine_ended(FAULT, now + WELL_S).culprit == request("probe")


def test_of_several_only_those_not_known_to_be_good_may_have_ended_it() -> None:
    made = Suspects()
    (number,) = begin(made, "good")
    made.ends(number, 0.0, well=True)
    begin(made, "good", "x", "y")
    assert made.engine_ended(FAULT, 20.0).bodies == {"x", "y"}


@pytest.mark.parametrize("end", [FAULT, HANG])
def test_a_probe_that_is_there_each_time_is_not_blamed_for_others(end: Ending) -> None:
    """A probe that was answered well runs beside another bad request each time the engine ends. The
    bad one is suspected, and the probe is never refused.
    """
    made = Suspects()
    (number,) = begin(made, "probe")
    made.ends(number, 0.0, well=True)
    for now in (10.0, 20.0, 30.0):
        begin(made, "probe", f"bad {now}")
        blame = made.engine_ended(end, now)
        assert blame.culprit is None and blame.bodies == {f"bad {now}"}
        assert made.refuses("probe", now + 1) is None


def test_of_two_that_were_there_both_times_the_one_that_was_never_answered_well_is_blamed() -> None:
    made = Suspects()
    (number,) = begin(made, "probe")
    made.ends(number, 0.0, well=True)
    for now in (10.0, 20.0):
        begin(made, "probe", "bad")
        blame = made.engine_ended(FAULT, now)
    assert blame.culprit == request("bad")
    assert made.refuses("probe", 21.0) is None


def test_a_probe_does_not_wait_for_suspects() -> None:
    made = Suspects()
    (number,) = begin(made, "probe")
    made.ends(number, 0.0, well=True)
    begin(made, "probe", "x", "y")
    made.engine_ended(FAULT, 10.0)
    begin(made, "x")
    assert made.refuses("y", 20.0) is not None
    assert made.refuses("probe", 20.0) is None


def test_copies_of_one_request_are_one() -> None:
    made = Suspects()
    begin(made, "x", "x", "x")
    assert made.engine_ended(FAULT, 0.0).culprit == request("x")


def test_nobody_there_nobody_to_blame() -> None:
    made = Suspects()
    (number,) = begin(made, "x")
    made.ends(number, 1.0, well=True)
    assert made.engine_ended(FAULT, 1.1).there == ()


def test_one_that_broke_off_just_before_was_there() -> None:
    for after, there in ((LATELY_S - 0.1, (request("x"),)), (LATELY_S, ())):
        made = Suspects()
        (number,) = begin(made, "x")
        made.ends(number, 1.0, well=False)
        assert made.engine_ended(FAULT, 1.0 + after).there == there


def test_suspects_run_one_at_a_time_until_they_ended_well() -> None:
    made = Suspects()
    for number in begin(made, "x", "y", "z"):
        assert made.refuses("z", 0.0) is None
        assert number
    blame = made.engine_ended(FAULT, 0.0)
    assert blame.culprit is None and len(blame.there) == 3
    (x,) = begin(made, "x")
    refused = made.refuses("y", 1.0)
    assert refused is not None and not refused.known
    assert made.refuses("new", 1.0) is None
    assert made.refuses("x", 1.0) is None, "a copy tells as much"
    made.ends(x, 2.0, well=True)
    (y,) = begin(made, "y")
    assert made.refuses("x", 3.0) is None, "it has proved innocent"
    begin(made, "new")
    assert made.engine_ended(FAULT, 4.0).culprit == request("y")
    assert made.refuses("new", 4.0) is None and made.refuses("z", 4.0) is None
    assert made.blame(y) is not None


def test_a_suspect_is_told_how_long_the_other_one_counts() -> None:
    made = Suspects()
    begin(made, "x", "y")
    made.engine_ended(FAULT, 0.0)
    (x,) = begin(made, "x")
    refused = made.refuses("y", 1.0)
    assert refused is not None and refused.wait_s == LATELY_S, "it runs, nobody knows how long"
    made.ends(x, 2.0, well=False)
    refused = made.refuses("y", 3.0)
    assert refused is not None and refused.wait_s == 2.0 + LATELY_S - 3.0
    assert made.refuses("y", 2.0 + LATELY_S) is None


def test_suspicion_ends() -> None:
    made = Suspects()
    begin(made, "x", "y")
    made.engine_ended(FAULT, 0.0)
    begin(made, "x")
    assert made.refuses("y", SUSPECTED_S - 1) is not None
    assert made.refuses("y", SUSPECTED_S) is None


def test_a_line_names_some_and_counts_the_rest() -> None:
    made = Suspects()
    begin(made, *"abcdef")
    line = str(made.engine_ended(FAULT, 0.0))
    assert "one of 6 requests (" in line and "digest d" in line and line.endswith("; 2 more)")
    assert "digest e" not in line


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
def test_a_request_that_ends_every_engine_is_found_the_second_time(names: list[str]) -> None:
    """Several clients send their requests again until they are answered, and one of them ends each
    engine. It is known after two ends.
    """
    made, bad, now = Suspects(), names[0], 0.0
    begin(made, *names)
    made.engine_ended(FAULT, now)
    ends = 1
    while (refused := made.refuses(bad, now)) is None or not refused.known:
        now += 1.0
        there = [name for name in names if made.refuses(name, now) is None]
        if bad in there:
            running = begin(made, *there[:1]) if there[0] == bad else begin(made, there[0])
            if there[0] == bad:
                ends += 1
                made.engine_ended(FAULT, now)
            else:
                made.ends(running[0], now, well=True)
                names = [name for name in names if name != there[0]]
    assert ends <= 2


class Anything(RuleBasedStateMachine):
    """Random requests, answers and ends of engines."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.now = Suspects(), 0.0
        self.running: dict[int, str] = {}

    @rule(name=st.sampled_from("abcdef"))
    def one_comes(self, name: str) -> None:
        if self.made.refuses(name, self.now) is None:
            (number,) = begin(self.made, name)
            self.running[number] = name

    @precondition(lambda self: self.running)
    @rule(data=st.data(), well=st.booleans())
    def one_ends(self, data: st.DataObject, well: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[number]
        self.made.ends(number, self.now, well=well)

    @rule(seconds=st.sampled_from([0.125, LATELY_S, REFUSED_S, SUSPECTED_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(ending=st.sampled_from([FAULT, HANG, KILLED, UNKNOWN]))
    def the_engine_ends(self, ending: Ending) -> None:
        good = {n for n in "abcdef" if self.made._good.get(n, self.now) > self.now}
        suspected = {n for n in "abcdef" if self.made._is_suspect(n, self.now)}
        blame = self.made.engine_ended(ending, self.now)
        there = {r.body_digest for r in blame.there}
        assert set(self.running.values()) <= there
        assert (blame.culprit is None) or blame.culprit.body_digest in there
        if len(there) == 1 and ending is FAULT and not there & good:
            assert blame.culprit is not None
        if ending.evidence is not Evidence.FAULT and not there & suspected:
            assert blame.culprit is None
        if ending in (KILLED, UNKNOWN):
            assert blame.culprit is None and not blame.bodies
        for number, name in self.running.items():
            assert self.made.blame(number) == blame
            self.made.ends(number, self.now, well=False)
            assert self.made.blame(number) is None
            assert name in there
        self.running.clear()
        assert self.made.engine_ended(FAULT, self.now).there == ()

    @invariant()
    def at_most_one_suspect_that_was_never_good_is_there(self) -> None:
        there = {r.body_digest for r in self.made._there(self.now)}
        allowed = [n for n in "abcdef" if self.made.refuses(n, self.now) is None]
        alone = {n for n in there if self.made._runs_alone(n, self.now)}
        assert len(alone) <= 1
        for name in allowed:
            assert not self.made._runs_alone(name, self.now) or alone <= {name}

    @invariant()
    def nobody_is_refused_for_ever(self) -> None:
        for name in "abcdef":
            refused = self.made.refuses(name, self.now)
            assert refused is None or 0 < refused.wait_s <= REFUSED_S
            assert self.made.refuses(name, self.now + SUSPECTED_S) is None


TestAnything = Anything.TestCase


def test_what_is_remembered_is_bounded() -> None:
    made = Suspects()
    for number in begin(made, *map(str, range(MOST + 100))):
        made.ends(number, 0.0, well=True)
    assert len(made._good) == MOST and "0" not in made._good
    made = Suspects()
    begin(made, *map(str, range(MOST + 100)))
    made.engine_ended(FAULT, 0.0)
    begin(made, str(MOST + 99))
    assert made.refuses("0", 1.0) is None
    assert made.refuses(str(MOST), 1.0) is not None
