"""Proof at start that a model computes the same after its layers have moved.

The same forward pass runs before the parameters move and after, and with all layers streamed. The
output of every module is compared, bit for bit: attention needs a KV cache, which does not exist
yet, so the model's output alone would not depend on queries, keys and values. The parameters' old
places are poisoned by then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

import torch

from mirage.engine.checksum import checksum
from mirage.engine.instead import instead
from mirage.engine.standin import SEED, computing, fed
from mirage.streaming.experts import ExpertStreamer
from mirage.streaming.transfer import LayerStreamer

logger = logging.getLogger("mirage.engine.proof")

TOKENS = 16
"""Number of tokens in a forward pass, fewer if the model takes no more."""
NOISE = 4.0
"""Factor by which outputs that differ from run to run may differ more after the move than
before."""


STAY = "set the tenant's max_percent to 0, and its layers stay where they are"


class UnsupportedModel(RuntimeError):
    """Error: a model's layers cannot be moved; the message says why, and what to do."""


class NoForward(Exception):
    """Error: a model cannot be computed without requests; the message says why."""


@dataclass
class Seen:
    """Result of one forward pass: each module's name and the checksum of its output, in order."""

    outputs: list[tuple[str, int]] = field(default_factory=list)
    last: torch.Tensor | None = None
    """Output of the model itself, which is compared if it varies from run to run."""


def observed(model: torch.nn.Module, step: Callable[[], Any], vocabulary: int) -> Seen:
    """Run `step`, which computes `model`, over the same random inputs each time, and return what
    was seen.

    Raise `NoForward` if it does not compute the model. Errors of `step` are passed on.
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
    """Do the same as `observed` for a model whose modules are compiled away.

    It notes queries, keys and values of each attention, and the model's output. All that is
    computed between two attentions affects these. Raises `NoForward` as `observed` does.
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
    """Context that notes queries, keys and values of an attention, and replaces its output by
    random numbers."""
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
    """Proof that a model computes the same with its parameters moved: the results before the move,
    with which later ones are compared.

    `observe` computes the model, with the same input each time. Raise `NoForward` if it cannot, or
    if the output is never the same and not finite.
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
        """Compare with all layers resident, all streamed over one slot and over two, and all
        resident again.

        If all layers are resident at first, experts that can move are given away too, and come
        back. `begin` is called before each forward pass. Raise `UnsupportedModel` if a pass fails
        or an output differs. Afterwards the same layers and slots are away as before, and
        `bytes_streamed` is 0. Layers that have no memory of their own are streamed in all passes.
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
        """Compare with all experts but one of each layer away, and with none away; return the
        number of forward passes."""
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
        """Return the name of the first module whose output differs; None if none does."""
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
    """Give freed device memory back, so that the next forward pass gets other memory.

    Torch would return the same memory: a kernel that reads memory which was never written would
    seem to give the same output.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _steady(first: Seen, second: Seen) -> list[bool]:
    """Return for each output True if it was the same both times. Raise `NoForward` if their number
    differs."""
    if len(first.outputs) != len(second.outputs):
        raise NoForward("it calls other modules each time")
    return [a == b for a, b in zip(first.outputs, second.outputs, strict=True)]


def _distance(first: Seen, second: Seen) -> float:
    """Return the largest difference of two outputs of the model: 0 for the same bits, infinity if
    their shapes differ."""
    one, other = first.last, second.last
    if one is None and other is None:
        return 0.0
    if one is None or other is None or one.shape != other.shape:
        return inf
    if checksum(one) == checksum(other):
        return 0.0
    return float((one.double() - other.double()).abs().max())
