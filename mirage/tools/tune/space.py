"""The knobs of a configuration, and the configuration that results from a choice of values. Pure.

The file's value is among the values of each knob, so that the unchanged file is a choice like any
other. `max_num_seqs` and `max_num_batched_tokens` are never raised for a GPU, since the memory that
they take is outside `device.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.config import Config, Policy, TenantSection
from mirage.serve.fit.fit import Fit

Value = float | int | str | None
Choice = Mapping[str, Value]
"""Values of the knobs that differ from the file, by knob."""
PERCENTS = (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0)
FIXED = (0.0, 10.0, 30.0, 50.0, 70.0, 90.0)
"""Percentages for all models with which every answer is compared."""
FACTORS = (0.125, 0.25, 0.5, 1.0)
MORE = (2.0, 4.0)
"""Further factors with `device.kind` host."""
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on the KV memory of a tenant's share; all shares are then scaled to their former sum."""
TURNS = (0.25, 0.5, 1.0, 2.0, 4.0)
RESTS_S = (2.0, 10.0, 30.0, 120.0)
LENT = (0.0, 25.0, 50.0, 75.0, 100.0)
LEAST_BATCHED = 64
OF_REMAP: tuple[str, ...] = ("serve", "lend_percent", "rest_s", "tbt_ms")
OF_SHARING: tuple[str, ...] = ("turn_s",)


@dataclass(frozen=True)
class Knob:
    """One setting and its possible values: numbers in ascending order, words and None in any
    order.
    """

    name: str
    """Name, as ``turn_s``, or ``max_percent:chat`` for a tenant's setting."""
    values: tuple[Value, ...]
    written: int
    """Index of the configuration's value."""

    @property
    def default(self) -> Value:
        """Value that leaves the configuration as it is: the value in the file, or 1.0 for a knob
        that is a factor.
        """
        return self.values[self.written]


@dataclass(frozen=True)
class SearchSpace:
    """All knobs of one configuration."""

    config: Config
    fits: Mapping[str, Fit]
    knobs: tuple[Knob, ...]

    def apply(self, choice: Choice) -> Config:
        """The configuration, under policy `mirage`, with these knobs set. Raises `KeyError` for an
        unknown knob.
        """
        if unknown := choice.keys() - {knob.name for knob in self.knobs}:
            raise KeyError(min(unknown))
        as_written = {knob.name: knob.default for knob in self.knobs}
        choice = {name: each for name, each in choice.items() if each != as_written[name]}
        config = self.config
        shares = _shares(config, self.fits, choice)
        tenants = [_tenant(config, t, choice, shares[t.name]) for t in config.tenants]
        remap = {key: choice[key] for key in OF_REMAP if key in choice}
        sharing = {key: choice[key] for key in OF_SHARING if key in choice}
        return config.model_copy(
            update={
                "tenants": tenants,
                "remap": config.remap.model_copy(update=remap),
                "sharing": config.sharing.model_copy(update=sharing),
            }
        )


def space(config: Config, fits: Mapping[str, Fit], steps_ms: Sequence[float]) -> SearchSpace:
    """The knobs that can have an effect under policy `mirage`.

    `steps_ms` are the values of `remap.tbt_ms` to search.
    """
    config = config.model_copy(update={"policy": Policy.MIRAGE})
    made = [knob for t in config.tenants for knob in _of_tenant(config, t, fits[t.name])]
    made.append(_knob("serve", ("admission", "growth"), config.remap.serve))
    made.append(_knob("lend_percent", LENT, config.remap.lend_percent))
    made.append(_or_none("tbt_ms", steps_ms, config.remap.tbt_ms))
    if config.sharing.mode == "temporal":
        turns = [config.sharing.turn_s * factor for factor in TURNS]
        made.append(_knob("turn_s", turns, config.sharing.turn_s))
    elif len(config.tenants) > 1:
        made.append(_knob("rest_s", RESTS_S, config.remap.rest_s))
    factors = FACTORS + (MORE if config.device.kind == "host" else ())
    made.append(_knob("max_num_seqs", factors, 1.0))
    made.append(_knob("max_num_batched_tokens", factors, 1.0))
    return SearchSpace(config, fits, tuple(knob for knob in made if len(knob.values) > 1))


def fixed(config: Config, percent: float) -> Config:
    """The configuration under policy `mirage`, with `percent` of its layers as the most that each
    model may give.
    """
    remap = config.remap.model_copy(update={"max_percent": percent})
    tenants = [t.model_copy(update={"max_percent": None}) for t in config.tenants]
    update = {"policy": Policy.MIRAGE, "remap": remap, "tenants": tenants}
    return config.model_copy(update=update)


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Old and new value of each key that differs, by its dotted path (``tenants.0.share``).

    Only `policy` and the keys of `sharing`, `remap` and `tenants` are compared; knobs change no
    others.
    """
    found: dict[str, tuple[Any, Any]] = {}
    if before.policy is not after.policy:
        found["policy"] = str(before.policy), str(after.policy)
    for part in ("sharing", "remap"):
        one, other = getattr(before, part), getattr(after, part)
        for key in type(one).model_fields:
            if getattr(one, key) != getattr(other, key):
                found[f"{part}.{key}"] = getattr(one, key), getattr(other, key)
    for index, (tenant, now) in enumerate(zip(before.tenants, after.tenants, strict=True)):
        for key in type(tenant).model_fields:
            if getattr(tenant, key) != getattr(now, key):
                found[f"tenants.{index}.{key}"] = getattr(tenant, key), getattr(now, key)
    return found


def _of_tenant(config: Config, tenant: TenantSection, fit: Fit) -> list[Knob]:
    made = [_knob(f"share:{tenant.name}", WEIGHTS, 1.0)] if len(config.tenants) > 1 else []
    if fit.stays is not None:
        return made
    layers = fit.layers
    floors = sorted({1, max(1, layers // 8), max(1, layers // 4), max(1, layers // 2)})
    made.append(_knob(f"max_percent:{tenant.name}", PERCENTS, config.max_percent(tenant)))
    made.append(_knob(f"floor_layers:{tenant.name}", floors, tenant.floor_layers))
    return made


def _knob(name: str, values: Sequence[Value], written: Value) -> Knob:
    """Knob with the file's value added to the others; numbers are sorted."""
    every = list(values) if written in values else [*values, written]
    if all(isinstance(value, int | float) for value in every):
        every = sorted(every, key=lambda value: float(value))  # type: ignore[arg-type]
    return Knob(name, tuple(every), every.index(written))


def _or_none(name: str, values: Sequence[float], written: float | None) -> Knob:
    """Knob with numbers in ascending order, and None (no bound) last."""
    every: list[float] = sorted({*values, *([] if written is None else [written])})
    whole: tuple[Value, ...] = (*every, None)
    return Knob(name, whole, whole.index(written))


def _tenant(config: Config, tenant: TenantSection, choice: Choice, share: float) -> TenantSection:
    update: dict[str, Any] = {"share": share}
    for key in ("max_percent", "floor_layers"):
        if (name := f"{key}:{tenant.name}") in choice:
            update[key] = choice[name]
    if (factor := choice.get("max_num_seqs")) is not None:
        update["max_num_seqs"] = _times(tenant.max_num_seqs, factor, 1)
    least = max(LEAST_BATCHED, update.get("max_num_seqs", tenant.max_num_seqs))
    if (factor := choice.get("max_num_batched_tokens")) is not None:
        least = max(least, tenant.max_model_len) if _in_one_step(tenant) else least
        written = tenant.max_num_batched_tokens
        update["max_num_batched_tokens"] = _times(written, factor, min(least, written))
    return tenant.model_copy(update=update)


def _in_one_step(tenant: TenantSection) -> bool:
    """True if prompts are computed whole, so that a prompt of full length must fit into one
    step.
    """
    named = {key.lstrip("-").replace("-", "_"): v for key, v in tenant.engine_args.items()}
    return named.get("enable_chunked_prefill") is False or "no_enable_chunked_prefill" in named


def _times(value: int, factor: Value, least: int) -> int:
    assert isinstance(factor, int | float)
    return max(least, round(value * factor))


def _shares(config: Config, fits: Mapping[str, Fit], choice: Choice) -> dict[str, float]:
    """Share of each tenant, in per cent of the device, that follows from the weights of a choice.

    The part of a share for the parameters and one request does not change. The rest of each share
    is multiplied by the tenant's weight; then all rests are scaled to their former sum.
    """
    weights = {t.name: choice.get(f"share:{t.name}", 1.0) for t in config.tenants}
    if all(weight == 1 for weight in weights.values()):
        return {t.name: t.percent for t in config.tenants}
    least = {t.name: _least_share(config, fits[t.name]) for t in config.tenants}
    rest = {t.name: max(0.0, t.percent - least[t.name]) for t in config.tenants}
    wanted = {name: rest[name] * float(weights[name] or 1) for name in rest}
    scale = sum(rest.values()) / sum(wanted.values()) if sum(wanted.values()) else 0.0
    return {
        t.name: _hundredths(min(t.percent, least[t.name]) + wanted[t.name] * scale)
        for t in config.tenants
    }


def _least_share(config: Config, fit: Fit) -> float:
    """Per cent of the device for the parameters and one request, with a spare extent for
    rounding.
    """
    extents = -(-fit.min_blocks // fit.extent_blocks) + 1
    needed = fit.parameter_bytes + extents * fit.extent_bytes
    return needed / config.device.memory * 100 + 0.01


def _hundredths(share: float) -> float:
    """The share rounded down to hundredths, so that shares never add up to more than before."""
    return int(share * 100) / 100
