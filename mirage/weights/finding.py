"""Finding a model's manifest, by its id or by a name that sources know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mirage.weights.manifest import ManifestRefused, WeightsManifest
from mirage.weights.problems import WeightsFailed, WeightsRefused
from mirage.weights.source import SourceClosed, SourceFailed, WeightSource
from mirage.weights.store import ID, SHORT_ID, WeightStore

PAUSE_S = 1.0


async def found_at(
    store: WeightStore,
    wanted: str,
    known: str | None,
    sources: Sequence[WeightSource],
    patience_s: float,
) -> tuple[WeightsManifest, str | None]:
    """Manifest of a model, and its name if `wanted` is a name. `known` is its id if the store has
    it: then no source is asked.

    Raises `WeightsRefused` if no source has the model, or several different ones fit. Raises
    `WeightsFailed` if after `patience_s` seconds none has it and some do not answer, or if no
    source sends its manifest.
    """
    name = None if SHORT_ID.fullmatch(wanted) else wanted
    if known is not None:
        return await asyncio.to_thread(store.manifest, known), name
    until = time.monotonic() + patience_s
    while True:
        told, whys, over = await _asked(wanted, sources)
        if len(told) > 1:
            both = ", ".join(sorted(told))
            raise WeightsRefused(f"{wanted}: sources have {both} of that name: name one of them")
        if told:
            ((model, having),) = told.items()
            return await _manifest(model, having), name
        if over:
            raise WeightsRefused(f"{wanted}: no source has it ({'; '.join(whys)}): correct it")
        if time.monotonic() > until:
            raise WeightsFailed(f"{wanted}: no source answers ({'; '.join(whys)})")
        await asyncio.sleep(PAUSE_S)


async def _asked(
    wanted: str, sources: Sequence[WeightSource]
) -> tuple[dict[str, list[WeightSource]], list[str], bool]:
    """Ask all sources for models that fit `wanted`. Returns the sources by the models' ids, the
    reasons of sources that have none, and True if it is useless to ask again.
    """
    found: dict[str, list[WeightSource]] = {}
    whys, over = [], True
    answers = await asyncio.gather(*(source.models() for source in sources), return_exceptions=True)
    for source, answer in zip(sources, answers, strict=True):
        if isinstance(answer, SourceFailed):
            whys.append(f"{source.url} {answer}")
            over &= isinstance(answer, SourceClosed)
        elif isinstance(answer, BaseException):
            raise answer
        elif fitting := {one.id for one in answer if _fits(wanted, one.id, one.names)}:
            for model in fitting:
                found.setdefault(model, []).append(source)
        else:
            whys.append(f"{source.url} has none of that name")
    return found, whys, over


def _fits(wanted: str, model: str, names: Sequence[str]) -> bool:
    if not ID.fullmatch(model):
        return False
    return wanted in names or (SHORT_ID.fullmatch(wanted) is not None and model.startswith(wanted))


async def _manifest(model: str, sources: Sequence[WeightSource]) -> WeightsManifest:
    """Manifest from the first source that has the right one. Raises `WeightsFailed` if none has."""
    whys = []
    for source in sources:
        try:
            return await source.manifest(model)
        except (SourceFailed, ManifestRefused) as error:
            whys.append(f"{source.url}: {error}")
    raise WeightsFailed(f"{model}: {'; '.join(whys)}")
