"""Results of the arithmetic in three sentences for a configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from mirage.config import Config
from mirage.control.lending import worth_lending
from mirage.serve.fit.fit import Fit
from mirage.serve.fit.outlook import LITTLE, spares_preemptions
from mirage.tools.explain.arithmetic import GB, Explained, Hidden
from mirage.tools.explain.sizes import rate
from mirage.units import size

NO_ACTIVE = (
    "no active model hides layers worth a tenth of its KV behind a batch that the device can hold"
)


Key = TypeVar("Key", bound=Hashable)


def sentences(
    config: Config, fits: Mapping[str, Fit], found: Sequence[Explained], link_gb_s: float
) -> list[str]:
    """Sentences on three questions: does remapping pay, what do idle models lend, and what is the
    break-even of the link?
    """
    if not any(one.most_remapped for one in found):
        return [
            "Remapping does not pay here: by max_percent and floor_layers no model ever gives a "
            "layer.",
            "Policy pooled does the same: it moves KV memory alone.",
            "No link is fast enough to change that.",
        ]
    pool = config.device.memory - sum(fit.parameter_bytes for fit in fits.values())
    if _movable(found) < LITTLE * pool:
        return [
            "Remapping does not pay here: the layers that models may give hold "
            f"{size(_movable(found))}, less than a tenth of the KV memory, {size(pool)}.",
            "Policy pooled does nearly the same: it moves KV memory alone.",
            _break_even(found, link_gb_s),
        ]
    idle = _idle_pays(config, pool, link_gb_s)
    spares = spares_preemptions(config, fits, pool, link_gb_s * GB * config.sharing.turn_s)
    return [
        _pays(found, idle),
        _idle(config, pool, found, link_gb_s, idle, spares),
        _break_even(found, link_gb_s),
    ]


def first_worth(one: Explained) -> Hidden | None:
    """The smallest batch that the engine can run and behind which layers hide whose memory is at
    least a tenth of the KV blocks of its share; None if there is no such batch.
    """
    for hidden in sorted(one.hidden, key=lambda h: h.batch):
        worth = hidden.layers_remapped and hidden.kv_blocks >= LITTLE * one.share_blocks
        if worth and hidden.batch <= one.most_requests:
            return hidden
    return None


def _pays(found: Sequence[Explained], idle: bool) -> str:
    worth = {one.name: hidden for one in found if (hidden := first_worth(one))}
    if not worth:
        begin = "pays here for idle models only" if idle else "does not pay here"
        return f"Remapping {begin}: {NO_ACTIVE}."
    begin = "for active models too" if idle else "for active models only"
    clauses = [
        f"{what} of {names} {behind}"
        for (what, behind), names in _alike(
            found,
            lambda one: (
                _hiding(one, worth[one.name]) if one.name in worth else ("none worth it", "")
            ),
        )
    ]
    return f"Remapping pays here, {begin}: {'; '.join(map(str.strip, clauses))}."


def _hiding(one: Explained, hidden: Hidden) -> tuple[str, str]:
    behind = f"behind {_requests(hidden.batch)} of {one.context:,} tokens"
    return f"{hidden.layers_remapped} of {one.layers} layers", f"hide {behind}"


def _requests(batch: int) -> str:
    return "1 request" if batch == 1 else f"{batch} requests"


def _idle_pays(config: Config, pool: int, link_gb_s: float) -> bool:
    """True if another model can use memory that an idle one lends; in turns only if this memory is
    worth its way back over the link. `pool` is the device's KV memory in bytes.
    """
    if len(config.tenants) == 1:
        return False
    return config.sharing.mode == "spatial" or _lent(config, pool, link_gb_s) >= LITTLE * pool


def _lent(config: Config, pool: int, link_gb_s: float) -> int:
    return worth_lending(pool, link_gb_s * GB * config.sharing.turn_s)


def _idle(
    config: Config,
    pool: int,
    found: Sequence[Explained],
    link_gb_s: float,
    pays: bool,
    spares: bool,
) -> str:
    turn_s = config.sharing.turn_s
    if len(config.tenants) == 1:
        return "There is no other model that would have the memory of an idle one."
    if not pays:
        loaded = size(int(link_gb_s * GB * turn_s))
        return (
            f"In turns of {turn_s:g} s idle models lend nothing that is worth its way back"
            f"{', unless many requests are preempted' if spares else ''}: the "
            f"link loads {loaded} in one, too little beside a KV memory of {size(pool)}; "
            f"make turns longer{'' if spares else ', or use policy pooled'}."
        )
    begin = f"In turns of {turn_s:g} s idle models lend "
    if config.sharing.mode == "spatial":
        begin = f"After up to {config.remap.rest_s:g} s without work an idle model lends "
    elif (lent := _lent(config, pool, link_gb_s)) < _movable(found):
        begin += f"at most {size(lent)} in all, of "
    giving = [one for one in found if one.most_remapped]
    clauses = (f"{what} of {names} {cost}" for (what, cost), names in _alike(giving, _lending))
    return f"{begin}{'; '.join(clauses)}."


def _lending(one: Explained) -> tuple[str, str]:
    load_s = one.most_remapped * one.load_s
    cost = f"({size(one.movable_bytes)} a model, loaded in {load_s:.3g} s)"
    return f"{one.most_remapped} layers", cost


def _movable(found: Iterable[Explained]) -> int:
    """Bytes of all layers that any of the models may give away."""
    return sum(one.movable_bytes for one in found)


def _alike(
    found: Iterable[Explained], key: Callable[[Explained], Key]
) -> Iterable[tuple[Key, str]]:
    """Each distinct key of the tenants, with the names of all tenants that have it."""
    named: dict[Key, list[str]] = {}
    for one in found:
        named.setdefault(key(one), []).append(one.name)
    return ((said, listed(names)) for said, names in named.items())


def listed(names: Sequence[str]) -> str:
    """Names joined as ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _break_even(found: Sequence[Explained], link_gb_s: float) -> str:
    """Sentence on the break-even link, for the model that needs the fastest one."""
    giving = [one for one in found if one.most_remapped]
    batches = sorted({h.batch for one in giving for h in one.hidden})
    held = [b for b in batches if all(b <= one.most_requests for one in giving)] or batches[:1]
    ends = sorted({held[0], held[-1]})
    one_layer = [_worst(giving, batch, "one_layer_gb_s") for batch in ends]
    every = [_worst(giving, batch, "all_layers_gb_s") for batch in ends]
    return (
        f"The break-even link for one layer of every model is {_at(one_layer, ends)}, for all that "
        f"max_percent and floor_layers allow {_at(every, ends)}; this link has "
        f"{rate(link_gb_s)} GB/s."
    )


def _worst(found: Sequence[Explained], batch: int, key: str) -> float | None:
    rates = [getattr(h, key) for one in found for h in one.hidden if h.batch == batch]
    return None if None in rates else max(rates)


def _at(rates: Sequence[float | None], batches: Sequence[int]) -> str:
    return " and ".join(
        f"{rate(each)} GB/s at batch {batch}" for each, batch in zip(rates, batches, strict=True)
    )
