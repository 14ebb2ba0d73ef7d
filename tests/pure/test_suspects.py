"""Which request ended an engine: named soon if it comes again, and nobody is refused for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage.serve.suspects import (
    LATELY_S,
    MOST,
    REFUSED_S,
    SUSPECTED_S,
    Request,
    Suspects,
)

pytestmark = pytest.mark.pure


def request(name: str) -> Request:
    return Request("/v1/completions", "m", name, 100)


def begin(suspects: Suspects, *names: str) -> list[int]:
    return [suspects.begins(request(name)) for name in names]


def test_the_only_one_is_the_culprit_and_refused_for_a_while() -> None:
    made = Suspects()
    (number,) = begin(made, "x")
    blame = made.engine_ended(10.0)
    assert blame.culprit == request("x") and made.blame(number) == blame
    made.ends(number, 10.1, well=False)
    refused = made.refuses("x", 11.0)
    assert refused is not None and refused.known and refused.wait_s == REFUSED_S - 1
    assert made.refuses("y", 11.0) is None
    assert made.refuses("x", 10.0 + REFUSED_S) is None


def test_copies_of_one_request_are_one() -> None:
    made = Suspects()
    begin(made, "x", "x", "x")
    assert made.engine_ended(0.0).culprit == request("x")


def test_nobody_there_nobody_to_blame() -> None:
    made = Suspects()
    (number,) = begin(made, "x")
    made.ends(number, 1.0, well=True)
    assert made.engine_ended(1.1).there == ()


def test_one_that_broke_off_just_before_was_there() -> None:
    for after, there in ((LATELY_S - 0.1, (request("x"),)), (LATELY_S, ())):
        made = Suspects()
        (number,) = begin(made, "x")
        made.ends(number, 1.0, well=False)
        assert made.engine_ended(1.0 + after).there == there


def test_suspects_run_one_at_a_time_until_they_ended_well() -> None:
    made = Suspects()
    for number in begin(made, "x", "y", "z"):
        assert made.refuses("z", 0.0) is None
        assert number
    blame = made.engine_ended(0.0)
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
    assert made.engine_ended(4.0).culprit == request("y")
    assert made.refuses("new", 4.0) is None and made.refuses("z", 4.0) is None
    assert made.blame(y) is not None


def test_suspicion_ends() -> None:
    made = Suspects()
    begin(made, "x", "y")
    made.engine_ended(0.0)
    begin(made, "x")
    assert made.refuses("y", SUSPECTED_S - 1) is not None
    assert made.refuses("y", SUSPECTED_S) is None


def test_a_line_names_some_and_counts_the_rest() -> None:
    made = Suspects()
    begin(made, *"abcdef")
    line = str(made.engine_ended(0.0))
    assert "one of 6 requests (" in line and "fingerprint d" in line and line.endswith("; 2 more)")
    assert "fingerprint e" not in line


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
def test_a_request_that_ends_every_engine_is_found_the_second_time(names: list[str]) -> None:
    """Its client, and all others, send again until they are answered."""
    made, bad, now = Suspects(), names[0], 0.0
    begin(made, *names)
    made.engine_ended(now)
    ends = 1
    while (refused := made.refuses(bad, now)) is None or not refused.known:
        now += 1.0
        there = [name for name in names if made.refuses(name, now) is None]
        if bad in there:
            running = begin(made, *there[:1]) if there[0] == bad else begin(made, there[0])
            if there[0] == bad:
                ends += 1
                made.engine_ended(now)
            else:
                made.ends(running[0], now, well=True)
                names = [name for name in names if name != there[0]]
    assert ends <= 2


class Anything(RuleBasedStateMachine):
    """Requests and ends in any order."""

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

    @rule()
    def the_engine_ends(self) -> None:
        blame = self.made.engine_ended(self.now)
        there = {r.fingerprint for r in blame.there}
        assert set(self.running.values()) <= there
        assert (blame.culprit is None) or blame.culprit.fingerprint in there
        if len(there) == 1:
            assert blame.culprit is not None
        for number, name in self.running.items():
            assert self.made.blame(number) == blame
            self.made.ends(number, self.now, well=False)
            assert self.made.blame(number) is None
            assert name in there
        self.running.clear()
        assert self.made.engine_ended(self.now).there == ()

    @invariant()
    def at_most_one_suspect_is_there(self) -> None:
        there = {r.fingerprint for r in self.made._there(self.now)}
        allowed = [n for n in "abcdef" if self.made.refuses(n, self.now) is None]
        suspected = {n for n in there if self.made._is_suspect(n, self.now)}
        assert len(suspected) <= 1
        for name in allowed:
            assert not self.made._is_suspect(name, self.now) or suspected <= {name}

    @invariant()
    def nobody_is_refused_for_ever(self) -> None:
        for name in "abcdef":
            refused = self.made.refuses(name, self.now)
            assert refused is None or 0 < refused.wait_s <= REFUSED_S
            assert self.made.refuses(name, self.now + SUSPECTED_S) is None


TestAnything = Anything.TestCase


def test_what_is_remembered_is_bounded() -> None:
    made = Suspects()
    begin(made, *map(str, range(MOST + 100)))
    made.engine_ended(0.0)
    begin(made, str(MOST + 99))
    assert made.refuses("0", 1.0) is None
    assert made.refuses(str(MOST), 1.0) is not None
