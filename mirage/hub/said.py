"""Refusals of a hub in words: the reason, and what to do. Pure."""

from __future__ import annotations

GATED, NO_REPOSITORY = "GatedRepo", "RepoNotFound"
NO_REVISION, NO_FILE = "RevisionNotFound", "EntryNotFound"
"""Values of the header `KIND` that the code distinguishes."""
KIND = "X-Error-Code"
TOKEN = "set HF_TOKEN, or run `hf auth login`"


def refusal(status: int, kind: str, page: str, *, token: bool) -> str | None:
    """Reason why the hub refuses, and what to do; None for a fault of the hub.

    `kind` is the value of the header `KIND`, `page` the address of the model's page, `token` True
    if a token was sent.
    """
    if kind == GATED or status == 403:
        account = "; this token's has not" if token else f", and {TOKEN}"
        return (
            f"the hub gives it to accounts alone that were granted access ({status}): ask for it "
            f"at {page}{account}"
        )
    if status == 401 and token and kind != NO_REPOSITORY:
        return f"the hub does not take the token (401): {TOKEN} with one that is valid"
    if kind == NO_REVISION:
        return "the hub has no such revision of it (404): name a branch, a tag or a whole commit"
    if kind == NO_FILE:
        return "the hub has lost a file of it (404): name another revision"
    if status in (401, 404):
        closed = "the token opens none that is private" if token else f"if it is private, {TOKEN}"
        return (
            f"there is no such model at {page} ({status}), and no folder of that name: correct it; "
            f"{closed}"
        )
    return None
