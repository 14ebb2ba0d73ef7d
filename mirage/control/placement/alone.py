"""Times of a request alone on a device: seconds of its prompt and of its tokens, by a roofline."""

from __future__ import annotations

from typing import NamedTuple

from mirage.control.placement.facts import ModelLoad, PlaceDevice, PlaceModel


class AloneTimes(NamedTuple):
    """Seconds of one mean request with a device to itself."""

    prefill_s: float
    step_s: float
    """Seconds of a step that reads all parameters, without the KV of requests."""
    context_s: float
    """Seconds by which each request in a step lengthens it, because its KV is read."""
    decode_s: float
    """Seconds of all output tokens of the request."""
    slack: float
    """Part of the request's TTFT limit, or of its TPOT limit, that is left: the smaller of both,
    from 0 to 1.
    """

    @property
    def request_s(self) -> float:
        return self.prefill_s + self.decode_s


def alone(model: PlaceModel, load: ModelLoad, device: PlaceDevice) -> AloneTimes:
    """Return the times of a request of mean length."""
    speed = device.speed
    prefill_s = load.tokens_in * model.token_flop / speed.flop_s
    step_s = speed.step_s + model.parameters / speed.memory_bytes_s
    context_s = load.context * model.kv_token_bytes / speed.memory_bytes_s
    decode_s = load.tokens_out * (step_s + context_s)
    slack = min(_left(prefill_s, model.ttft_s), _left(step_s + context_s, model.tpot_s))
    return AloneTimes(prefill_s, step_s, context_s, decode_s, slack)


def _left(seconds: float, limit_s: float) -> float:
    return max(0.0, 1 - seconds / limit_s)
