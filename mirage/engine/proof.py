"""The proof at start that a model whose layers have moved computes what it did before.

The same forward runs before the parameters move and after, and with all layers streamed. Of
every module the output is compared, bit for bit: attention needs a KV cache, which there is none of
yet, so the model's output alone would not show what queries, keys and values are made of.
Where a parameter was, there is poison by then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any

import torch

from mirage.engine.checksum import checksum
from mirage.engine.instead import instead
from mirage.engine.standin import SEED, computing, fed
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerStreamer

logger = logging.getLogger("mirage.engine.proof")

TOKENS = 16
"""Tokens of the forward, fewer if the model takes no more."""
NOISE = 4.0
"""Outputs of a model that differ from run to run may differ so many times more than before."""


STAY = "set the tenant's max_percent to 0, and its layers stay where they are"


class UnsupportedModel(RuntimeError):
    """A model whose layers cannot be moved; the message says why, and what to do."""


class NoForward(Exception):
    """A model that cannot be computed without requests; the message says why."""


@dataclass
class Seen:
    """Result of one forward: each module's name and the checksum of its output, in order."""

    outputs: list[tuple[str, int]] = field(default_factory=list)
    last: torch.Tensor | None = None
    """The model's own output, if it is not the same each time."""


def observed(model: torch.nn.Module, step: Callable[[], Any], vocabulary: int) -> Seen:
    """Let `step` compute `model` once, over the same random inputs each time.

    Raises `NoForward` if it does not compute it; and whatever it raises.
    """
    seen = Seen()
    with computing(model, vocabulary) as inputs, ExitStack() as over:
        for name, module in model.named_modules():
            note = partial(_note, seen, name)
            over.callback(module.register_forward_hook(note).remove)
        step()
    if not inputs:
        raise NoForward("it takes neither token ids nor embeddings")
    if seen.last is None:
        raise NoForward("none of its modules told what it computes")
    seen.last = seen.last.clone()  # may be a buffer that the next forward writes to
    return seen


def between(
    attentions: Sequence[Any], model: torch.nn.Module, step: Callable[[], Any], vocabulary: int
) -> Seen:
    """Like `observed`, for models whose modules are compiled away.

    Records queries, keys and values of each attention, and the model's output. All that is computed
    between two attentions shows there. Raises `NoForward` likewise.
    """
    seen = Seen()
    with fed(model, vocabulary) as inputs, ExitStack() as over:
        for index, attention in enumerate(attentions):
            over.enter_context(_given(seen, attention, f"what comes before attention {index}"))
        over.callback(model.register_forward_hook(partial(_note, seen, "")).remove)
        step()
    if not inputs:
        raise NoForward("it takes neither token ids nor embeddings")
    if seen.last is None:
        raise NoForward("it does not tell what it computes")
    seen.last = seen.last.clone()
    return seen


@contextmanager
def _given(seen: Seen, attention: Any, name: str) -> Iterator[None]:
    """Note queries, keys and values; instead of what attention gives, random numbers."""
    forward = attention.forward

    def noting(layer: Any, *tensors: Any, **kwargs: Any) -> Any:
        _note(seen, name, layer, (), tensors[:3])
        out = forward(layer, *tensors, **kwargs)
        generator = torch.Generator(device=tensors[0].device).manual_seed(SEED)
        if isinstance(output := kwargs.get("output"), torch.Tensor):
            output.normal_(generator=generator)
        return out

    with instead(attention, noting):
        yield


def _note(seen: Seen, name: str, module: Any, args: Any, output: Any) -> None:
    for tensor in _tensors(output):
        seen.outputs.append((name, checksum(tensor)))
        seen.last = tensor


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)


class Proof:
    """Forwards of one model before its parameters move, to hold later ones against.

    `observe` computes the model once, the same each time. Raises `NoForward` if it cannot.
    """

    def __init__(self, observe: Callable[[], Seen], tenant: str, advice: str = STAY) -> None:
        self._observe, self._advice = observe, advice
        self._seconds = 0.0
        self._tenant = tenant
        try:
            first = self._observed()
            _forget_freed()
            self._before = self._observed()
        except NoForward:
            raise
        except Exception as error:
            raise NoForward(f"{type(error).__name__}: {error}") from error
        self._noise = _distance(first, self._before)
        self._steady = _steady(first, self._before)
        if not isfinite(self._noise):
            raise NoForward("its output is another one each time, and not finite")

    def moved(self, streamer: LayerStreamer, begin: Callable[[], None]) -> None:
        """Prove it with all layers resident, all streamed over one slot and over two, and back.

        `begin` is called before each forward. Raises `UnsupportedModel` where it differs. The
        streamer is left as it was. Layers that have no memory of their own are streamed throughout.
        """
        count, given = len(streamer.layers), (streamer.layers_remapped, streamer.stream_slots)
        settings = [given, (count - 1, 1), (count - 2, 2), given]
        for remapped, slots in settings:
            streamer.set(max(remapped, 0), slots)
            begin()
            streamed = streamer.layers_remapped + streamer.stream_slots
            self._compare(f"with {streamed} of {count} layers streamed")
        forwards = len(settings) + 2
        if isinstance(streamer, ExpertStreamer) and not given[0]:
            forwards += self._experts_moved(streamer, begin)
        streamer.bytes_streamed = 0
        logger.info(
            "proven to compute the same forwards=%d s=%.2f outputs=%d of %d",
            forwards,
            self._seconds,
            sum(self._steady),
            len(self._steady),
        )

    def _experts_moved(self, streamer: ExpertStreamer, begin: Callable[[], None]) -> int:
        """The same with all experts but one of each layer away, and back; how many forwards."""
        for experts in (streamer.layout.most, 0):
            streamer.set(0, 0, experts)
            begin()
            self._compare(f"with {experts} experts of each layer away")
        streamer.forget()
        return 2

    def _observed(self) -> Seen:
        start = time.perf_counter()
        try:
            return self._observe()
        finally:
            self._seconds += time.perf_counter() - start

    def _compare(self, where: str) -> None:
        try:
            after = self._observed()
        except Exception as error:
            raise self._refused(f"{type(error).__name__}: {error}", where) from error
        if name := self._differs(after):
            raise self._refused(f"{name} gives another output", where)

    def _differs(self, after: Seen) -> str | None:
        """The first module that computes something else, if any."""
        if len(after.outputs) != len(self._before.outputs):
            return "the model"
        for steady, old, new in zip(self._steady, self._before.outputs, after.outputs, strict=True):
            if steady and old != new:
                return old[0] or "the model"
        near = _distance(self._before, after) <= NOISE * self._noise  # NaN is not
        return None if near else "the model"

    def _refused(self, what: str, where: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"tenant {self._tenant!r}: after its layers were moved, {what} ({where}): "
            f"{self._advice}"
        )


def _forget_freed() -> None:
    """Give freed device memory back, so that the next forward gets other memory.

    Torch would give it the same again: what a kernel reads and nobody wrote would look steady.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _steady(first: Seen, second: Seen) -> list[bool]:
    """Outputs that are the same each time, as flags."""
    if len(first.outputs) != len(second.outputs):
        raise NoForward("it calls other modules each time")
    return [a == b for a, b in zip(first.outputs, second.outputs, strict=True)]


def _distance(first: Seen, second: Seen) -> float:
    """The largest difference of two outputs of the model; 0 for the same bits."""
    if first.last is None or second.last is None or first.last.shape != second.last.shape:
        return 0.0
    if checksum(first.last) == checksum(second.last):
        return 0.0
    return float((first.last.double() - second.last.double()).abs().max())
