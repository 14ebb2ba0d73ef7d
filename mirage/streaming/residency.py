"""Places of experts: local ones in device memory, cold ones in shared frames. Pure.

Each layer keeps all experts but g *local*. Its g *cold* ones are in host memory only, until a step
routes to them. Then they are loaded into *spare frames*. All layers share g of these, as many as
one layer can need in one step, so that any routing can be computed. A frame keeps its expert until
another one needs it, so a cold expert that was used lately is often still in a frame.

Rebalancing moves nothing. If a step uses a cold expert that is clearly more often routed to than a
local one that it does not use, the two change places in the books: the frame of the cold one
becomes local, and the frame of the local one becomes a spare one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from mirage.streaming.routing import RoutingCounts, keep_cold

CLEARLY = 0.1
"""Least difference of the parts of calls (0 to 1) that route to a cold and to a local expert for
which they change places."""


class Expert(NamedTuple):
    """An expert, by its layer and number."""

    layer: int
    number: int


class FrameChange(NamedTuple):
    """Frame changes that a layer's experts need before they are called, in this order."""

    leave: list[Expert]
    """Cold experts that lose their frames."""
    load: list[Expert]
    """Cold experts that get a frame and are loaded."""


class Residency:
    """Books of local and cold experts, spare frames, hits and loads."""

    def __init__(self, routing: RoutingCounts) -> None:
        self.routing = routing
        self.given = 0
        """Number of cold experts of each layer, and of spare frames."""
        self.cold: dict[int, set[int]] = {layer: set() for layer in routing.layers}
        self.framed: OrderedDict[Expert, None] = OrderedDict()
        """Cold experts in spare frames, least recently used first."""
        self.hits = self.loads = self.swaps = 0

    def chosen(self, given: int) -> dict[int, set[int]]:
        """Return the cold experts by layer when each layer gives `given` away."""
        return {
            layer: keep_cold(cold, self.routing.coldest_first(layer), given)
            for layer, cold in self.cold.items()
        }

    def give(self, cold: dict[int, set[int]]) -> None:
        """Set the cold experts to a result of `chosen`, and empty the spare frames."""
        self.cold = cold
        self.given = max(map(len, cold.values()), default=0)
        self.framed.clear()

    def route(self, layer: int, numbers: Iterable[int]) -> FrameChange:
        """Note that a step is about to use these experts of a layer; return the frame changes
        needed before."""
        used = set(numbers)
        cold = sorted(used & self.cold[layer])
        if not cold:
            return FrameChange([], [])
        wanted = [Expert(layer, number) for number in cold]
        load = [expert for expert in wanted if expert not in self.framed]
        self.hits += len(wanted) - len(load)
        self.loads += len(load)
        leave = self._make_room(len(load), set(wanted))
        for expert in wanted:
            self.framed[expert] = None
            self.framed.move_to_end(expert)
        self._swap(layer, cold, used)
        return FrameChange(leave, load)

    def _make_room(self, count: int, wanted: set[Expert]) -> list[Expert]:
        short = max(0, count - (self.given - len(self.framed)))
        leave = [expert for expert in self.framed if expert not in wanted][:short]
        for expert in leave:
            del self.framed[expert]
        return leave

    def _swap(self, layer: int, cold: list[int], used: set[int]) -> None:
        """Let the cold experts that this step uses, all in frames by now, change places with local
        ones that it does not use and that are clearly colder."""
        order = self.routing.coldest_first(layer)
        local = [e for e in order if e not in self.cold[layer] and e not in used]
        hottest = sorted(cold, key=order.index, reverse=True)
        for hot, colder in zip(hottest, local, strict=False):
            share = self.routing.share
            if share(layer, hot) < share(layer, colder) + CLEARLY:
                return
            self.cold[layer].remove(hot)
            self.cold[layer].add(colder)
            del self.framed[Expert(layer, hot)]
            self.framed[Expert(layer, colder)] = None
            self.framed.move_to_end(Expert(layer, colder), last=False)
            self.swaps += 1
