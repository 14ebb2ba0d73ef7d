"""Answers to requests that no engine has answered: the reason, and what to do."""

from __future__ import annotations

from mirage.control.roster.states import LifeState
from mirage.control.routes.quarantine import REFUSED_S
from mirage.control.routes.routing import RequestFate
from mirage.serve.api.openai import ApiError, ReplicaCannot
from mirage.serve.ends.ending import Evidence
from mirage.serve.ends.suspects import Blame, SuspectRefusal
from mirage.serve.routed.table import RoutedRow


def suspect_refused(model: str, refusal: SuspectRefusal) -> ApiError:
    """Answer to a request that may have ended an engine of `model`."""
    wait_s = refusal.wait_s
    if refusal.known:
        message = f"ended over this very request: change it, or wait for {wait_s:.0f} s"
        return ApiError(
            422,
            f"model {model!r}: its engine {message}",
            code="request_ended_engine",
            wait_s=wait_s,
        )
    message = "ended over this request or another one that runs now: try again later"
    return ApiError(503, f"model {model!r}: its engine {message}", wait_s=wait_s)


def not_in_time(row: RoutedRow, model: str, wait_s: float, why: str = "") -> ReplicaCannot:
    """Answer to a request for `model` that would wait too long; `wait_s` seconds is the prediction.
    `why` is a reason beside the time, such as that of a failed tenant; empty if there is none."""
    message = f"model {model!r} is {row.state.value}"
    if why and row.state is LifeState.FAILED:
        message += f": {why}"
    else:
        since = f" ({why})" if why else ""
        message += f", and cannot be awake in time{since}: try again later"
    return ReplicaCannot(503, message, param="model", code="model_not_in_time", wait_s=wait_s)


def engine_away(model: str) -> ReplicaCannot:
    """Answer to a request of which no engine has read anything."""
    message = f"model {model!r}: its engine is away: try again later"
    return ReplicaCannot(503, message, param="model", fate=RequestFate.UNREAD)


def turned_away(model: str) -> ReplicaCannot:
    """Answer to a request that an engine has refused by 503."""
    message = f"model {model!r}: its engine takes no request now: try again later"
    return ReplicaCannot(503, message, param="model")


def ended_with(model: str, body_digest: str, blame: Blame) -> ApiError:
    """Answer to a request that ran when the engine of `model` ended.

    `blame` names the request that ended the engine, if it is known; by `body_digest`, the digest of
    this request's body, the two are compared.
    """
    if blame.ending.evidence is not Evidence.FAULT and blame.culprit is None:
        message = f"model {model!r}: its {blame.ending}: send this request again"
        if blame.ending.from_outside:
            return ReplicaCannot(502, message, fate=RequestFate.ENDED_OUTSIDE)
        return ApiError(502, message)
    begin = f"model {model!r}: its engine ended"
    others = len(blame.there) - 1
    if blame.culprit is None and not others:
        return ApiError(502, f"{begin}, perhaps over this request")
    if blame.culprit is None:
        return ApiError(502, f"{begin} over this request, or over one of {others} others")
    if blame.culprit.body_digest != body_digest:
        return ApiError(502, f"{begin} over another request: send this one again")
    return ApiError(
        502,
        f"{begin} over this request (digest {body_digest}): it is refused for {REFUSED_S:g} s",
        code="request_ended_engine",
    )
