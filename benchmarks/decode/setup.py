"""An experiment's file that asks for a decoding batch whose KV blocks lie on several tiers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from benchmarks.decode.metrics import Metrics, metrics
from benchmarks.decode.oracle import bound
from benchmarks.decode.orders import ORACLE, POLICIES, SIX
from benchmarks.decode.outcome import Machine
from benchmarks.decode.places import Sizes
from benchmarks.decode.rotation import Drawn, Rotation
from benchmarks.decode.run import Decode
from mirage import profiles
from mirage.config import ConfigError, Count, Strict, read_yaml, validated
from mirage.profiles import Hardware, Model
from mirage.simulate.roofline import Roofline, Streaming, Work
from mirage.simulate.tier_settings import SimulatedTiers, speeds
from mirage.tiers.contract import Medium
from mirage.units import ceil_div
from mirage.workload import drawing
from mirage.workload.dealing import clip
from mirage.workload.lengths import lengths

MOST_STEPS = 1_000_000


class Batch(Strict):
    """Requests that take turns in decoding."""

    requests: Count
    """Requests that are under way at any time."""
    size: Count
    """Number of these requests that decode at the same time."""
    turn_steps: Count = 64
    """Steps after which a request goes to the end of the queue."""
    turns: Count = 500
    """Number of turns that are simulated, those of all requests together."""
    lengths: str = "sharegpt"
    """A name in `configs/lengths.yaml`."""
    oversubscription: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Blocks of all requests over those that the device holds; left out, it holds what the
    machine's memory has room for beside the weights."""
    ahead_steps: Annotated[int, Field(ge=0, le=10_000)] = 1
    """K: for how many steps `prefetch` looks ahead."""
    block_tokens: Count = 16

    @model_validator(mode="after")
    def _somebody_waits(self) -> Batch:
        if self.size >= self.requests:
            raise ValueError(
                f"size {self.size} of {self.requests} requests: nobody takes turns, lower it"
            )
        if self.steps > MOST_STEPS:
            raise ValueError(f"turns {self.turns} are {self.steps} steps: at most {MOST_STEPS}")
        return self

    @property
    def steps(self) -> int:
        return ceil_div(self.turns * self.turn_steps, self.size)


class Decoding(Strict):
    """Content of one file: the machine, the model, the batch, and the compared policies."""

    title: str
    hardware: str = "h100"
    model: str
    decode: Batch
    tiers: SimulatedTiers
    policies: list[str] = Field(default_factory=lambda: list(SIX), min_length=1)


class DecodeSetup:
    """A `Decoding` with its hardware and model profiles. Raises `ConfigError` with one line for an
    unknown profile or policy, or tiers that are not possible.
    """

    def __init__(self, experiment: Decoding, near: Path | None = None) -> None:
        self.experiment, self.near = experiment, near or Path()
        self.hardware: Hardware = profiles.hardware(experiment.hardware, near)
        self.model: Model = profiles.model(experiment.model, near)
        self.block_bytes = experiment.decode.block_tokens * self.model.kv_token_bytes
        self.policies = list(dict.fromkeys(experiment.policies))
        lengths(experiment.decode.lengths)
        self._speeds = speeds(experiment.tiers, self.hardware)
        self._check()

    def run(self, policy: str, seed: int) -> Metrics:
        """Figures of one policy; equal seeds give equal figures. Raises `ConfigError` if the device
        does not hold the batch's blocks, or all tiers together not those of all requests.
        """
        machine, stay = self._machine(seed)
        rotation, steps = self.rotation(seed), self.experiment.decode.steps
        if policy == ORACLE:
            outcome = bound(rotation, machine, steps)
        else:
            ahead = self.experiment.decode.ahead_steps
            outcome = Decode(policy, rotation, machine, ahead, stay).run(steps)
        return {"policy": policy, "seed": seed, **metrics(outcome, machine, self._recompute_ps)}

    @cached_property
    def roofline(self) -> Roofline:
        """Roofline of the model on the machine, made in the process that runs it, because it cannot
        be sent.
        """
        return Roofline(self.model, self.hardware)

    def rotation(self, seed: int) -> Rotation:
        """Requests of a seed, before the first step."""
        batch = self.experiment.decode
        drawn = self._drawn(seed)
        return Rotation(drawn, batch.requests, batch.size, batch.turn_steps, batch.block_tokens)

    def _drawn(self, seed: int) -> Iterator[Drawn]:
        rng = random.Random(f"decode {seed}")
        shape = lengths(self.experiment.decode.lengths)
        while True:
            yield Drawn(*clip(*drawing.lengths(rng, shape), self.model.max_len))

    def _machine(self, seed: int) -> tuple[Machine, int]:
        """The machine, and the number of blocks that stay on its device under the
        policy `static`.
        """
        live, batch = self._peaks(seed)
        device = self._device_blocks(live)
        below = {m: speed.capacity // self.block_bytes for m, speed in self._speeds.items()}
        host = min(below[Medium.HOST], live)  # more would stay empty
        ssd = min(below.get(Medium.SSD, 0), live)
        if device < batch:
            raise ConfigError(
                f"the batch has {batch} blocks, the device holds {device}: lower "
                "decode.oversubscription or decode.size"
            )
        if device + host + ssd <= live:
            raise ConfigError(
                f"all requests have {live} blocks, device and tiers hold {device + host + ssd}: "
                "raise tiers.host.bytes or tiers.ssd.bytes"
            )
        stay = int((device - batch) / (1 - batch / live)) if live > batch else device
        sizes = Sizes(device, host, ssd, self.block_bytes)
        return self._of(sizes), min(stay, device)

    def _of(self, sizes: Sizes) -> Machine:
        speeds = self._speeds
        return Machine(
            sizes, speeds[Medium.HOST], speeds.get(Medium.SSD), self._compute_ps, self.model.layers
        )

    def _device_blocks(self, live: int) -> int:
        batch = self.experiment.decode
        if batch.oversubscription is not None:
            return int(-(-live // batch.oversubscription))
        reserved = int(self.hardware.reserved_mb.value * 1e6)
        room = self.hardware.memory_bytes - self.model.parameter_bytes - reserved
        return max(0, room) // self.block_bytes

    def _peaks(self, seed: int) -> tuple[int, int]:
        """The most blocks of all requests at any step, and of the batch."""
        rotation = self.rotation(seed)
        peaks = [(rotation.live_blocks, rotation.batch_blocks)]
        for _ in range(self.experiment.decode.steps):
            rotation.step()
            peaks.append((rotation.live_blocks, rotation.batch_blocks))
        return max(live for live, _ in peaks), max(batch for _, batch in peaks)

    def _compute_ps(self, sequences: int, context: int) -> int:
        return self.roofline.compute_ps(Work(sequences, context))

    def _recompute_ps(self, number: int) -> int:
        """Picoseconds that computing one block again adds to a step; `number` is the block's place
        in its request.
        """
        tokens = self.experiment.decode.block_tokens
        area = tokens * (2 * number * tokens + tokens + 1)
        work = Work(0, 0, tokens, area)
        bounds = self.roofline.bounds(Streaming(), 1)
        return max(one.at(work) - one.fixed for one in bounds)

    def _check(self) -> None:
        known = [*POLICIES, ORACLE]
        if unknown := [name for name in self.policies if name not in known]:
            raise ConfigError(
                f"no policy of a decoding batch is named {unknown[0]!r}: known are "
                f"{', '.join(known)}"
            )
        if Medium.HOST not in self._speeds:
            raise ConfigError("blocks of a batch need a tier below: write tiers.host.bytes")
        if Medium.PEER in self._speeds:
            raise ConfigError("tiers.peer is not for a decoding batch: leave it out")


@dataclass(frozen=True)
class Job:
    """One run: a checked setup, a policy and a seed."""

    setup: DecodeSetup
    policy: str
    seed: int

    def run(self, begun: Callable[[Any], None] = lambda world: None) -> Metrics:
        """Run the job and return its figures. `begun` is not called, because there is no world of
        engines.
        """
        return self.setup.run(self.policy, self.seed)


def load(path: Path) -> DecodeSetup:
    """Read and check one file. Raises `ConfigError` with one line if it cannot be read or
    simulated.
    """
    return DecodeSetup(validated(Decoding, read_yaml(path), path), path.parent)
