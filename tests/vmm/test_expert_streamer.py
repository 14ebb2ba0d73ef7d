"""Layers and experts are given away in turn, and steps always find their own parameters."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mirage.streaming.compute import HostCompute
from mirage.streaming.expert_layout import ExpertLayout, Piece
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerFrame, TransferError
from tests.examples import examples
from tests.tampered.pool import PoisoningPool
from vmm.driver import GrantExceeded, VmmError
from vmm.host import HostBuffer, HostDriver
from vmm.space import Range

pytestmark = pytest.mark.vmm

PAGE = 4096
LAYERS, COUNT = 5, 4
EXPERTS = ExpertLayout((0, 2, 3), COUNT, (Piece(PAGE, PAGE), Piece((2 + COUNT) * PAGE, 2 * PAGE)))
"""Two slices of each, of one page and of two, with pages that are no expert's around them."""
PAGES = 3 + 3 * COUNT
LAYER = PAGES * PAGE


def _byte(layer: int, page: int) -> int:
    return 1 + layer * PAGES + page


class Mixture:
    """Five layers, three of which have four experts. Each page has a byte of its own."""

    def __init__(self) -> None:
        self.driver = HostDriver(PAGE)
        self.pool = PoisoningPool(self.driver, LAYERS * LAYER)
        self.masters = [HostBuffer(LAYER) for _ in range(LAYERS)]
        layers = [self._layer(index) for index in range(LAYERS)]
        self.streamer = ExpertStreamer(self.driver, self.pool, layers, HostCompute(), EXPERTS)

    def _layer(self, index: int) -> LayerFrame:
        master, home = self.masters[index], Range(self.driver, LAYER)
        for page in range(PAGES):
            master.tensor()[page * PAGE : (page + 1) * PAGE] = _byte(index, page)
        home.back(0, self.pool.take(PAGES, "layer"))
        self.driver.copy(home.address, master.address, LAYER)
        return LayerFrame(index, home, master.address, LAYER, self.driver.event())

    def step(self, numbers: set[int]) -> None:
        """Run a step: check the bytes of each layer, but of its experts only those of `numbers`, to
        which the step routes."""
        for index in range(LAYERS):
            self.streamer.before(index)
            spans = [(0, LAYER)]
            if index in EXPERTS.layers:
                self.streamer.routed(index, numbers)
                spans = EXPERTS.outside(set(range(COUNT)) - numbers, LAYER)
            for offset, nbytes in spans:
                self._read(index, offset, nbytes)
            self.streamer.after(index)

    def _read(self, index: int, offset: int, nbytes: int) -> None:
        found = self.streamer.layers[index].range.tensor(offset, nbytes).view(-1, PAGE)
        first = offset // PAGE
        assert found.min(1).values.tolist() == found.max(1).values.tolist()
        assert found[:, 0].tolist() == [_byte(index, first + n) for n in range(len(found))]

    def check(self) -> None:
        """Compare the books with the pages; no more pages may be in use than needed."""
        self.streamer.check_integrity()
        self.pool.check_integrity()
        self.driver.check_integrity()
        streamer = self.streamer
        assert (
            self.pool.in_use_bytes
            == streamer.pages(streamer.layers_remapped, streamer.experts) * PAGE
        )

    def close(self) -> None:
        self.streamer.close()
        self.driver.close()
        for master in self.masters:
            master.close()


layers_given = st.tuples(st.integers(0, 4), st.integers(1, 2), st.just(0)).filter(
    lambda one: one[0] + one[1] <= LAYERS
)
absent = st.just((LAYERS, 0, 0))
experts_given = st.tuples(st.just(0), st.just(0), st.integers(0, COUNT - 1))
steps = st.sets(st.integers(0, COUNT - 1), min_size=1)


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(layers_given | experts_given | absent | steps, min_size=4, max_size=14))
def test_whatever_is_given_away_what_a_step_needs_is_there(todo) -> None:
    model = Mixture()
    for event in todo:
        if isinstance(event, set) and model.streamer.absent:
            with pytest.raises(TransferError, match="no layer of the model has memory"):
                model.streamer.begin()
        elif isinstance(event, set):
            model.step(event)
        else:
            model.streamer.set(*event)
            assert (model.streamer.layers_remapped, model.streamer.experts) == (event[0], event[2])
        model.check()
    if model.streamer.absent:
        model.streamer.set(0, 0, 1)
    model.step({0, 1, 2, 3} if not model.streamer.experts else {0})
    model.check()
    model.close()


def test_steps_in_flight_end_before_memory_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, told = Mixture(), list[str]()
    unmap = HostDriver.unmap

    def unmapped(driver: HostDriver, address: int, nbytes: int) -> None:
        told.append("unmapped")
        unmap(driver, address, nbytes)

    monkeypatch.setattr(HostCompute, "wait_for_steps", lambda compute: told.append("awaited"))
    monkeypatch.setattr(HostDriver, "unmap", unmapped)
    for given_away in ((0, 0, 1), (2, 1, 0), (0, 0, 0)):
        told.clear()
        model.streamer.set(*given_away)
        assert told[0] == "awaited" and "unmapped" in told
    model.close()


@pytest.mark.parametrize(
    ("before", "to"),
    [
        ((2, 1, 0), (0, 0, 1)),
        ((0, 0, 3), (1, 1, 0)),
        ((0, 0, 3), (0, 0, 1)),
        ((0, 0, 3), (0, 0, 0)),
    ],
)
def test_memory_that_is_lacking_is_refused_before_anything_moves(before, to) -> None:
    model = Mixture()
    model.streamer.set(*before)
    model.pool.set_grant(model.pool.in_use_bytes)
    with pytest.raises(GrantExceeded):
        model.streamer.set(*to)
    model.check()
    model.step({2})
    model.check()
    model.close()


def test_one_set_turns_into_the_other_within_the_larger_of_both() -> None:
    model = Mixture()
    model.streamer.set(2, 2)
    both = max(model.streamer.pages(2, 0), model.streamer.pages(0, 3)) * PAGE
    model.pool.set_grant(both)
    for _ in range(2):
        model.streamer.set(0, 0, 3)
        model.step({1})
        model.streamer.set(2, 2)
        model.step({1})
        model.check()
    model.close()


@pytest.mark.parametrize(
    "asked", [(1, 1, 1), (0, 0, COUNT), (0, 0, -1), (2, 0, 0), (5, 1, 0), (-1, 1, 0)]
)
@pytest.mark.parametrize("held", [(0, 0, 0), (0, 0, 2), (1, 1, 0)])
def test_what_cannot_be_had_is_refused_and_changes_nothing(held, asked) -> None:
    model = Mixture()
    model.streamer.set(*held)
    with pytest.raises(TransferError):
        model.streamer.set(*asked)
    assert (model.streamer.layers_remapped, model.streamer.experts) == (held[0], held[2])
    model.check()
    model.step({0, 3})
    model.close()


def test_a_device_that_fails_halfway_is_said_to_have_left_experts_half_moved() -> None:
    model = Mixture()
    model.streamer.set(0, 0, 2)
    home = model.streamer.layers[3].range

    def fails(*what: object) -> None:
        raise VmmError("no")

    home.back = fails  # type: ignore[method-assign]
    with pytest.raises(TransferError, match="half moved: no"):
        model.streamer.set(0, 0, 0)
    model.close()
