"""Sentences about the reasons, costs and gains of moved memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from mirage.control.lent import NOBODY
from mirage.control.moves import Kind
from mirage.serve.admin.forms import LoanTold, MoveTold, WhyTold
from mirage.serve.admin.shown import span
from mirage.units import size

LEAST = 0.5
"""Least estimated number of saved preemptions, or of saved waits, that the text mentions."""


def explanation(told: WhyTold) -> str:
    """Text about the plan's moves, then about the loans: first those with most bytes lent now.

    For several devices it is about moves of models between them.
    """
    if told.placements is not None:
        return _placements(told.placements, told)
    loans = sorted(told.loans, key=lambda one: (-one.bytes_now, -one.byte_s))
    moves = [moved(move) for move in told.moves] or ["nothing moved: each has its share"]
    lent = [sentence(one) for one in loans] or ["nobody lent anything"]
    return "\n".join(["now:", *_indented(moves), f"{_window(told)}:", *_indented(lent)])


def _placements(moves: list[MoveTold], told: WhyTold) -> str:
    """Text about moves of models between devices, in the order given, and the last decision."""
    lines = [line for move in moves for line in placement_lines(move)] or ["no model has moved"]
    lines += [f"last decision: {told.stays}"] if told.stays else []
    one = (f"memory on {name}: mirage why --socket {path}" for name, path in told.sockets.items())
    return "\n".join([*lines, *one])


def placement_lines(move: MoveTold) -> list[str]:
    """Lines about a move of models: the decision, each model's devices before and after, and the
    steps."""
    when = datetime.fromtimestamp(move.t, UTC).strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"{when} UTC, {move.result}: {move.why}"]
    for model in dict.fromkeys(step.model for step in move.steps):
        before, after = (_places(each.get(model, {})) for each in (move.before, move.after))
        lines.append(f"  {model}: {before} -> {after}")
    for number, step in enumerate(move.steps, 1):
        took = f" in {step.seconds:.1f} s" if step.seconds else ""
        words = f" ({step.words})" if step.words else ""
        result = f"{step.result or 'to come'}{took}{words}"
        lines.append(f"  {number}. {step.verb} {step.model} on {step.device}, {result}: {step.why}")
    return lines + ([f"  way back: {move.way_back}"] if move.way_back else [])


def _places(stands: dict[str, str]) -> str:
    named = (name if stand == "awake" else f"{name} ({stand})" for name, stand in stands.items())
    return ", ".join(named) or "on disk"


def sentence(one: LoanTold) -> str:
    """Sentence about a loan: its size and time, its cost for the lender and gain for the
    borrower.
    """
    reasons = sorted(one.reasons, key=lambda reason: -one.reasons[reason])
    why = f" ({', '.join(reasons)})" if reasons else ""
    lasts = f"for {span(one.lent_s)}{', and still does' if one.bytes_now else ''}"
    if one.lender == NOBODY:
        return f"{one.borrower} had up to {_what(one)} {lasts}{why}: {_gain(one)}"
    if one.lender == one.borrower:
        who = f"{one.lender} gave up to {_what(one)} for its own requests {lasts}"
    else:
        who = f"{one.lender} lent {one.borrower} up to {_what(one)} {lasts}"
    return "; ".join([f"{who}{why}: {_cost(one)}", _gain(one)])


def moved(move: dict[str, Any]) -> str:
    """Words about one move of a plan."""
    places = f"{move['from']} to {move['to']}"
    return f"{size(move['bytes'])}, {places} ({move['reason']}): {move['because']}"


def _what(one: LoanTold) -> str:
    parts, words = one.most_bytes, []
    if nbytes := parts.get(Kind.LAYERS.value):
        count = f"{one.most_layers:.1f}".removesuffix(".0")
        words.append(f"{count} layer{'' if count == '1' else 's'} ({size(nbytes)})")
    if nbytes := parts.get(Kind.EXPERTS.value):
        words.append(f"{size(nbytes)} of experts")
    if nbytes := parts.get(Kind.KV.value):
        words.append(f"{size(nbytes)} of idle KV memory")
    if nbytes := parts.get(Kind.FREE.value):
        words.append(f"{size(nbytes)} of free memory")
    return " and ".join(words) or "nothing"


def _cost(one: LoanTold) -> str:
    if not one.most_bytes.keys() & {Kind.LAYERS.value, Kind.EXPERTS.value}:
        return "no step waits for such memory"
    if not one.tokens:
        return f"{one.lender} decoded nothing meanwhile"
    added = f"{_ms(one.token_s / one.tokens)} a token"
    requests = f"{one.requests:,} request{'' if one.requests == 1 else 's'}"
    return f"+{added} on {requests}"


def _gain(one: LoanTold) -> str:
    saved = [
        f"{count:,.0f} {name}{'' if round(count) == 1 else 's'}"
        for count, name in ((one.preemptions_saved, "preemption"), (one.waits_saved, "wait"))
        if count >= LEAST
    ]
    return f"{one.borrower} saved " + (f"about {' and '.join(saved)}" if saved else "no preemption")


def _ms(seconds: float) -> str:
    """Time in milliseconds, with more decimals if it is short."""
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 0.1 else f"{ms:.2f} ms"


def _window(told: WhyTold) -> str:
    words = f"since {datetime.fromtimestamp(told.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return words + (", when this server began" if told.since == told.began else "")


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
