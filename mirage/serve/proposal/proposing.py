"""A configuration for a machine and models: device memory, shares, the longest request. Pure.

Shares hold the parameters and one request of the longest each; what is left is shared out evenly.
Models that do not fit together come and go (docs/roster.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from mirage.config import Config
from mirage.errors import InputRefused
from mirage.facts import KVGroups, ModelFacts
from mirage.serve.fit import fit, least_kv_bytes, parameter_bytes, with_shares
from mirage.units import GIB, MIB, align_up, size

Kind = Literal["host", "cuda"]

ENGINE_BYTES = 2 * GIB
"""Host memory of an engine's processes, beside weights and KV cache."""
BESIDE: Mapping[str, int] = {"host": 0, "cuda": 3 * GIB}
"""Device memory of an engine beside `device.memory`: CUDA's context, activations, graphs."""
KEPT = 0.02
"""Part of a GPU that is left free."""
AT_ONCE = 8
"""Longest requests of each model for which host memory is taken."""
LONGEST: Mapping[str, int | None] = {"host": 4096, "cuda": None}
"""Tokens of a request that are proposed at most; None: what the model was made for."""
ROUNDED = 1e-6
"""Hundredths of a per cent that a sum of shares may lose."""
LEAST = 1024
"""Tokens below which no request's limit is lowered."""
FOR_LONGEST = 0.5
"""Part of what parameters leave that one longest request of each model may take."""
PAGE: Mapping[str, int] = {"host": 64 * 1024, "cuda": 2 * MIB}


class HostMachine(NamedTuple):
    """Memory that is there, in bytes."""

    kind: Kind
    device_bytes: int
    """Memory of the GPU; on a host, all that it has."""
    host_bytes: int
    title: str
    asked: int | None = None
    """Bytes of the device that somebody wants; None: they are proposed."""


class OfferedModel(NamedTuple):
    """A model that shall be served."""

    name: str
    model: str
    """Its folder, or its name at a hub."""
    facts: ModelFacts
    """Facts with requests of `longest` tokens."""
    longest: int
    code: bool = False
    """True if its own code is trusted."""


class Proposal(NamedTuple):
    """A configuration as a file has it, and what is to be known of it."""

    raw: dict[str, Any]
    together: bool
    """False if models come and go, as not all fit."""
    lines: tuple[str, ...]


def propose(machine: HostMachine, models: Sequence[OfferedModel]) -> Proposal:
    """Raises `InputRefused` if a model is too large for the machine."""
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
    """Device of a configuration that is being made."""

    kind: Kind
    memory: int
    moves: bool

    def raw(
        self,
        models: Sequence[OfferedModel],
        shares: Sequence[float | None],
        tokens: Sequence[int],
    ) -> dict[str, Any]:
        """The configuration as a file has it."""
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
    """True if layers may move, for which they need a copy in host memory; and the device's room."""
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
    """Bytes of the device: all of a GPU, and of a host what several longest requests take."""
    if machine.kind == "cuda":
        return room // MIB * MIB
    wanted = weights + sum(AT_ONCE * least_kv_bytes(one.facts, page) + page for one in models)
    return min(align_up(wanted, MIB), room // MIB * MIB)


def _least(one: OfferedModel, page: int) -> int:
    """Bytes with which a model can be served at all."""
    facts = _facts(one.facts, min(one.longest, LEAST))
    return parameter_bytes(facts, page) + least_kv_bytes(facts, page) + page


def _shares(
    device: _Device, models: Sequence[OfferedModel]
) -> tuple[list[float | None], list[int]]:
    """Per cent of each model, None where they come and go, and tokens of its longest request."""
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
    """Per cent of the device that each model needs for requests of `tokens` tokens."""
    config = Config.model_validate(device.raw(models, [None for _ in models], tokens))
    facts = {
        one.name: _facts(one.facts, longest) for one, longest in zip(models, tokens, strict=True)
    }
    filled = with_shares(config, facts)
    _, too_large = fit(filled, facts)
    return [101.0 if t.name in too_large else t.percent for t in filled.tenants]


def _facts(facts: ModelFacts, tokens: int) -> ModelFacts:
    """Facts with requests limited to `tokens` tokens."""
    groups = tuple(replace(each, most_blocks=each.blocks(tokens)) for each in facts.kv.groups)
    return replace(facts, kv=KVGroups(groups))


def _line(one: OfferedModel, share: float | None, tokens: int, page: int) -> str:
    parameters = size(parameter_bytes(one.facts, page))
    part = "as little as it needs" if share is None else f"{share:g} %"
    return f"{one.name}: share {part}, parameters {parameters}, requests of up to {tokens:,} tokens"
