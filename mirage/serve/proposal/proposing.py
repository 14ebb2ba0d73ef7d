"""Proposal of a configuration: device memory, shares and longest requests. Pure.

A share holds the parameters and one longest request of its model; the rest of the device is divided
evenly. Models that do not all fit sleep and wake as requests need them (docs/roster.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from mirage.config import Config
from mirage.errors import InputRefused
from mirage.facts import KVGroups, ModelFacts
from mirage.serve.fit.fit import fit, least_kv_bytes, parameter_bytes, with_shares
from mirage.units import GIB, MIB, align_up, size

Kind = Literal["host", "cuda"]

ENGINE_BYTES = 2 * GIB
"""Host memory of an engine's processes, beyond weights and KV cache."""
BESIDE: Mapping[str, int] = {"host": 0, "cuda": 3 * GIB}
"""Device memory of an engine beyond `device.memory`: CUDA's context, activations, graphs."""
KEPT = 0.02
"""Fraction of a GPU's memory that is left free."""
AT_ONCE = 8
"""Number of longest requests of each model that a proposed device of host memory holds at the same
time.
"""
LONGEST: Mapping[str, int | None] = {"host": 4096, "cuda": None}
"""Most tokens of a request that are proposed; None leaves it to the model."""
ROUNDED = 1e-6
"""Tolerance in hundredths of a per cent, for rounding errors when shares are summed."""
LEAST = 1024
"""Tokens below which the limit of requests is not lowered."""
FOR_LONGEST = 0.5
"""Largest fraction of the memory beyond the least shares (parameters, and a request of `LEAST`
tokens) that longer requests of all models may take together.
"""
PAGE: Mapping[str, int] = {"host": 64 * 1024, "cuda": 2 * MIB}


class HostMachine(NamedTuple):
    """Memory of a machine, in bytes."""

    kind: Kind
    device_bytes: int
    """Memory of the GPU; on a host, all host memory."""
    host_bytes: int
    title: str
    asked: int | None = None
    """Bytes of the device that the user wants; None to propose them."""


class OfferedModel(NamedTuple):
    """Model to serve."""

    name: str
    model: str
    """Folder of the model, or its name at a hub."""
    facts: ModelFacts
    """vLLM's answers about the model, for requests of `longest` tokens."""
    longest: int
    code: bool = False
    """True if the model's own code may run."""


class Proposal(NamedTuple):
    """Proposed configuration, and its explanation."""

    raw: dict[str, Any]
    together: bool
    """False if not all models fit at the same time, so that they come and go."""
    lines: tuple[str, ...]


def propose(machine: HostMachine, models: Sequence[OfferedModel]) -> Proposal:
    """Propose a configuration. Raises `InputRefused` if a model is too large for the machine."""
    page = PAGE[machine.kind]
    weights = sum(parameter_bytes(one.facts, page) for one in models)
    least = max((_least(one, page), one.name) for one in models)
    moves, room = _room(machine, len(models), weights, least[0])
    if least[0] > room:
        raise InputRefused(
            f"{least[1]} takes {size(least[0])} (parameters, and the KV cache of {LEAST} tokens), "
            f"{machine.title} has {size(max(0, room))} for it: serve it elsewhere, or a smaller one"
        )
    memory = machine.asked or _memory(machine, models, weights, room, page)
    shares, tokens = _shares(_Device(machine.kind, memory, moves), models)
    raw = _Device(machine.kind, memory, moves).raw(models, shares, tokens)
    together = None not in shares
    lines = (
        f"device: {size(memory)} of {machine.title}, {size(machine.device_bytes)}",
        *(_line(m, s, t, page) for m, s, t in zip(models, shares, tokens, strict=True)),
        *(() if together else ("not all models fit at once: they come and go as requests ask",)),
        *(() if moves else ("layers stay: host memory has no room for a copy of them",)),
    )
    return Proposal(raw, together, lines)


class _Device(NamedTuple):
    """Device of a proposal."""

    kind: Kind
    memory: int
    moves: bool

    def raw(
        self,
        models: Sequence[OfferedModel],
        shares: Sequence[float | None],
        tokens: Sequence[int],
    ) -> dict[str, Any]:
        """Proposal as a file's keys; None as a share is ``auto``."""
        tenants = [
            {
                "name": one.name,
                "model": one.model,
                "share": "auto" if share is None else share,
                "max_model_len": longest,
                **({"engine_args": {"trust_remote_code": True}} if one.code else {}),
            }
            for one, share, longest in zip(models, shares, tokens, strict=True)
        ]
        unit, name = (GIB, "GiB") if self.memory % GIB == 0 else (MIB, "MiB")
        device = {"kind": self.kind, "memory": f"{self.memory // unit}{name}"}
        remap = {} if self.moves else {"remap": {"max_percent": 0}}
        return {"device": device, "tenants": tenants, **remap}


def _room(machine: HostMachine, models: int, weights: int, least: int) -> tuple[bool, int]:
    """True if layers may move, for which host memory needs a copy of them; and the bytes of the
    device that models may have.

    `models` is the number of models, `weights` the bytes of all their parameters, and `least` the
    most bytes that any of them needs to be served.
    """
    host = machine.host_bytes - models * ENGINE_BYTES
    if machine.asked is not None:
        return True, machine.asked
    if machine.kind == "host":
        return (True, host - weights) if host - weights >= least else (False, host)
    free = machine.device_bytes * (1 - KEPT) - models * BESIDE["cuda"]
    return host >= weights, int(free)


def _memory(
    machine: HostMachine, models: Sequence[OfferedModel], weights: int, room: int, page: int
) -> int:
    """Bytes of the proposed device: all room of a GPU; on a host, parameters and `AT_ONCE` longest
    requests of each model, if there is room for so much.
    """
    if machine.kind == "cuda":
        return room // MIB * MIB
    wanted = weights + sum(AT_ONCE * least_kv_bytes(one.facts, page) + page for one in models)
    return min(align_up(wanted, MIB), room // MIB * MIB)


def _least(one: OfferedModel, page: int) -> int:
    """Least bytes of the device with which a model can be served, for requests of at most `LEAST`
    tokens.
    """
    facts = _facts(one.facts, min(one.longest, LEAST))
    return parameter_bytes(facts, page) + least_kv_bytes(facts, page) + page


def _shares(
    device: _Device, models: Sequence[OfferedModel]
) -> tuple[list[float | None], list[int]]:
    """Share of each model in per cent, or None for each if not all fit; and the tokens of each
    model's longest request.
    """
    halvings = max(one.longest for one in models).bit_length()
    tokens = [_halved(one.longest, halvings) for one in models]
    base = sum(least := _least_shares(device, models, tokens))
    if base > 100:
        return [None for _ in models], tokens
    most = base + (100 - base) * FOR_LONGEST
    for halving in range(halvings):
        longer = [_halved(one.longest, halving) for one in models]
        shares = _least_shares(device, models, longer)
        if sum(shares) <= most:
            least, tokens = shares, longer
            break
    more = (100 - sum(least)) / len(models)
    return [max(share, int((share + more) * 100 + ROUNDED) / 100) for share in least], tokens


def _halved(longest: int, times: int) -> int:
    return max(min(longest, LEAST), longest >> times)


def _least_shares(
    device: _Device, models: Sequence[OfferedModel], tokens: Sequence[int]
) -> list[float]:
    """Share in per cent that each model needs for requests of `tokens` tokens; 101 if it is too
    large.
    """
    config = Config.model_validate(device.raw(models, [None for _ in models], tokens))
    facts = {
        one.name: _facts(one.facts, longest) for one, longest in zip(models, tokens, strict=True)
    }
    filled = with_shares(config, facts)
    _, too_large = fit(filled, facts)
    return [101.0 if t.name in too_large else t.percent for t in filled.tenants]


def _facts(facts: ModelFacts, tokens: int) -> ModelFacts:
    """Facts about a model with requests limited to `tokens` tokens."""
    groups = tuple(replace(each, most_blocks=each.blocks(tokens)) for each in facts.kv.groups)
    return replace(facts, kv=KVGroups(groups))


def _line(one: OfferedModel, share: float | None, tokens: int, page: int) -> str:
    parameters = size(parameter_bytes(one.facts, page))
    part = "as little as it needs" if share is None else f"{share:g} %"
    return f"{one.name}: share {part}, parameters {parameters}, requests of up to {tokens:,} tokens"
