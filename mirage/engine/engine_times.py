"""Times and counts that an engine measures of its own steps and copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from mirage.control.reporting import LayerTimes
from mirage.control.token_cost import TokenCost
from mirage.engine.device_memory import DeviceMemory


class EngineTimes:
    """Measured times of one engine in seconds: T_T, T_c, and those of a token and an expert."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory, self._compute_time = memory, memory.backend.compute_time
        self.layer_load_s = 0.0
        """T_T: seconds to load one layer; 0 while unknown."""
        self.sleep_s = self.wake_s = 0.0
        """Seconds of memory moves of the last sleep and the last wake; see `Report`."""
        self.token_cost = TokenCost()
        self.warm = False
        """True once steps are those of requests, which count for T_c."""

    @contextmanager
    def timed_step(self, tokens: int) -> Iterator[None]:
        """Context around one step of `tokens` tokens, which is timed only once `warm` is true. Its
        time is known at the end, or some steps later."""
        if not self.warm:
            yield
            return
        memory = self._memory
        self.token_cost.begin(tokens)
        self._compute_time.begin(memory.layers_remapped + memory.stream_slots)
        try:
            with memory.backend.timed(self.stepped):
                yield
        except BaseException:
            self.token_cost.fail()
            self._compute_time.fail()
            raise

    def stepped(self, compute_s: float) -> None:
        """Note the seconds of compute of the oldest step whose time was not known yet."""
        if (giver := self._memory.giver) is not None:
            compute_s = max(0.0, compute_s - giver.spent_s())
        self.token_cost.end(compute_s)
        self._compute_time.end(compute_s)

    def moved(self, seconds: float, *, was_absent: bool) -> None:
        """Note that moves of memory took `seconds`. It is the time to sleep if all layers are away
        now and were not before, and the time to wake if all were away before (`was_absent`) and are
        not any more."""
        if self._memory.absent and not was_absent:
            self.sleep_s = seconds
        elif was_absent and not self._memory.absent:
            self.wake_s = seconds

    @property
    def layer_compute_s(self) -> float:
        """T_c: seconds of compute per layer and step; 0 while unknown."""
        return self._compute_time.step_s / max(self._memory.layers, 1)

    def layer_times(self) -> LayerTimes:
        """Return T_T, T_c, and the times of tokens, sleeps, wakes and experts."""
        giver, token_s = self._memory.giver, self.token_cost.token_s
        times = LayerTimes(
            self.layer_load_s,
            self.layer_compute_s,
            token_s=token_s,
            sleep_s=self.sleep_s,
            wake_s=self.wake_s,
        )
        if giver is None:
            return times
        # Until one was loaded, as long as its part of a layer.
        part = giver.layout.nbytes / self._memory.layer_bytes
        load_s = giver.load_s or self.layer_load_s * part
        return replace(times, expert_s=load_s, expert_routed=giver.observed())

    def expert_counts(self) -> dict[str, int]:
        """Return the fields of `Counters` that count experts; empty if no expert can be given
        away."""
        if (giver := self._memory.giver) is None:
            return {}
        books = giver.residency
        return {
            "expert_hits": books.hits,
            "expert_loads": books.loads,
            "expert_bytes_loaded": giver.expert_bytes_loaded,
            "expert_peer_loads": giver.replicas_loaded,
        }
