"""``mirage ps``, ``tenants``, ``apply`` and ``logs``: a running server's tenants."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage.config import parsed_value, read_text
from mirage.control.roster.states import LifeState
from mirage.errors import CommandFailed, InputRefused
from mirage.options import JsonOption
from mirage.printed import json_object
from mirage.serve.admin.acts import DRAIN_S, target
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.following import followed
from mirage.serve.admin.forms import FORM_VERSION, ActTaken, OperatorAct, StateChange
from mirage.serve.admin.shown import described, process_table
from mirage.serve.apply.forms import ABSENT, ApplyTold, DeviceAwaits

SocketOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Admin socket of the server, as it printed it.",
        show_default="that of the only server of this user",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="Name of the tenant, as `mirage ps` shows it.")]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Return when the state is reached; without it, when the command is accepted."
    ),
]


class TenantVerb(StrEnum):
    """Word of `mirage tenants`: an act of an operator, or one that shows or changes the tenant."""

    SHOW = "show"
    SLEEP = "sleep"
    WAKE = "wake"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"
    SET = "set"
    REMOVE = "remove"


def ps_command(as_json: JsonOption = False, socket: SocketOption = None) -> None:
    """List the tenants of a running server: state, memory, requests, and what comes next.

    DEVICE is the device memory a tenant holds now, SHARE what is guaranteed while it is awake.
    """
    told = _client(socket).tenants()
    typer.echo(json_object(FORM_VERSION, told) if as_json else process_table(told, time.time()))


def tenants_command(
    verb: Annotated[TenantVerb, typer.Argument(help="What to do with the tenant.")],
    name: NameArgument,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="With set: keys as in CONFIG, or engine_args.KEY; an empty value removes the key.",
        ),
    ] = None,
    wait: WaitOption = False,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            metavar="SECONDS",
            help="Time for running requests to end before the tenant sleeps or stops.",
            show_default=f"{DRAIN_S:g} with drain, else roster.drain_s of the configuration",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With show: print one JSON object instead.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Show a tenant, put it to sleep, wake it, stop it, start it anew, drain it, or change it.

    `set` changes its keys, `remove` ends its service. A request wakes and starts a tenant as well.
    Requests that still run when a drain is over wait until their tenant is awake again if it
    sleeps, and end with an error if it stops.
    """
    if as_json and verb is not TenantVerb.SHOW:
        raise InputRefused(f"--json works only with show: leave it out with {verb}")
    client, given = _client(socket), _keys(keys or [], verb)
    if verb is TenantVerb.SHOW:
        told = client.tenant(name)
        typer.echo(json_object(FORM_VERSION, told) if as_json else described(told, time.time()))
        return
    if verb is TenantVerb.SET:
        _declare(client, lambda: client.set(name, given, drain), wait=wait)
        return
    if verb is TenantVerb.REMOVE:
        _declare(client, lambda: client.remove(name, drain), wait=wait)
        return
    act = OperatorAct(verb)
    if not wait:
        typer.echo(client.act(name, act, drain).will)
        return
    sleeps = _sleeps(client)
    with client.watch() as lines:
        taken = client.act(name, act, drain)
        typer.echo(taken.will)
        goal = target(act, sleeps=sleeps)
        _until(taken, goal, lines, sleeps=sleeps)


def apply_command(
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The whole configuration.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")
    ] = False,
    wait: WaitOption = False,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            metavar="SECONDS",
            help="Time for running requests of tenants that are removed or restarted.",
            show_default="roster.drain_s of the configuration",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            metavar="SECONDS",
            help="With --wait: longest time until all has settled, else the command fails.",
            show_default="no limit",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print one JSON object instead.")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Apply FILE to a running server: its tenants are added, changed and removed.

    It says what differs from what holds, whether new tenants fit, and who would yield for them.
    With --dry-run also what each tenant's latencies would become: the last hour's requests are
    simulated as they are served now, and as they would be.
    """
    if as_json and not dry_run:
        raise InputRefused("--json works only with --dry-run: add that, or leave it out")
    if timeout is not None and not wait:
        raise InputRefused("--timeout works only with --wait: add that, or leave it out")
    client, text = _client(socket), read_text(file)
    if dry_run:
        told = client.apply(text, file, dry_run=True, drain_s=drain)
        _foretell(told, client, as_json=as_json)
        return
    apply = partial(client.apply, text, file, drain_s=drain)
    _declare(client, apply, wait=wait, limit_s=timeout)


def logs_command(
    name: NameArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they come, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", min=0, help="Print only this many of the last lines."),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Print the log of a tenant's engines: all since the server's start, or with --log-dir, ever.

    It is read where it lies, so in the server's file system.
    """
    log = Path(_client(socket).tenant(name).log)
    try:
        with log.open("rb") as file:
            typer.echo(b"".join(deque(file, lines)), nl=False)
            for part in followed(file, log) if follow else ():
                typer.echo(part, nl=False)
    except FileNotFoundError:
        raise CommandFailed(f"{log}: no log yet, its engine has not been started here") from None
    except BrokenPipeError:
        raise SystemExit(0) from None


def _client(named: Path | None) -> AdminClient:
    return AdminClient(chosen(named))


def _foretell(told: ApplyTold, client: AdminClient, *, as_json: bool) -> None:
    """Print the effects of a dry run, and the latencies predicted for them, as text or as one JSON
    object (`as_json`)."""
    from mirage.serve.admin.foretold import as_object, foretold, foretold_of_devices, text_of

    if not as_json:
        typer.echo("\n".join(told.lines))
    found, devices = foretold(told, client.past), foretold_of_devices(told, client.past)
    if as_json:
        typer.echo(as_object(told, found, devices))
    elif text := text_of(found, devices):
        typer.echo(text)


def _declare(
    client: AdminClient,
    declare: Callable[[], ApplyTold],
    *,
    wait: bool,
    limit_s: float | None = None,
) -> None:
    """Carry out a change of declarations, print its effects, and on `wait` wait for them, for
    `limit_s` seconds at most.
    """
    if not wait:
        typer.echo("\n".join(declare().lines))
        return
    sleeps = _sleeps(client)
    with client.watch(limit_s) as lines:
        told = declare()
        typer.echo("\n".join(told.lines))
        _until_settled(told, lines, sleeps=sleeps)


def _sleeps(client: AdminClient) -> bool:
    return client.tenants().server.policy == "mirage"


def _until_settled(told: ApplyTold, lines: Iterable[StateChange], *, sleeps: bool) -> None:
    """Print changes of states until all tenants are as `told` expects.

    `sleeps` is True if the server's tenants can sleep. Raises `CommandFailed` if a tenant fails, is
    removed, is added again or is told to do something else, if the server ends, or if time is over.
    """
    awaits = told.devices or {"": DeviceAwaits(revision=told.revision, awaited=told.awaited)}
    left = {
        (device, name): state
        for device, one in awaits.items()
        for name, state in one.awaited.items()
    }
    changes = iter(lines)
    while left:
        try:
            change = next(changes, None)
        except TimeoutError:
            raise CommandFailed(f"time is over: {_wanted(left)}; what was applied holds") from None
        if change is None:
            names = ", ".join(dict.fromkeys(name for _, name in left))
            raise CommandFailed(f"the server ended before {names} had settled")
        place = change.device, change.tenant
        if place not in left or change.revision < awaits[change.device].revision:
            continue
        if change.act:
            _check_goal(change, awaits[change.device].revision, left[place], sleeps=sleeps)
            continue
        typer.echo(_is_now(change))
        if change.state == left[place]:
            del left[place]
        elif left[place] == ABSENT and not change.removed:
            raise CommandFailed(f"{change.tenant} was added again meanwhile")
        else:
            _check_may_come(change)


def _wanted(left: Mapping[tuple[str, str], str]) -> str:
    """Words about tenants, each with its device and the state that it has not reached."""
    each = [
        f"{name} is not {state} yet{f' on {device}' if device else ''}"
        for (device, name), state in left.items()
    ]
    return ", ".join(each)


def _is_now(change: StateChange) -> str:
    where = f" on {change.device}" if change.device else ""
    return f"{change.tenant} is {change.state}{where}"


def _keys(words: list[str], verb: TenantVerb) -> dict[str, Any]:
    """Values of words of the form KEY=VALUE. Raises `InputRefused` for words of another form, and
    if `verb` needs words or takes none.
    """
    if words and verb is not TenantVerb.SET:
        raise InputRefused(f"{verb} takes no {words[0]!r}: only set takes keys")
    if not words and verb is TenantVerb.SET:
        raise InputRefused("set needs keys: write KEY=VALUE, as priority=1")
    if wrong := [word for word in words if "=" not in word]:
        raise InputRefused(f"{wrong[0]!r} is no KEY=VALUE: write one, as priority=1")
    values: dict[str, Any] = {}
    for word in words:
        key, text = word.split("=", 1)
        values[key] = value = parsed_value(text, word)
        try:  # infinity would be sent as null, which unsets the key
            json.dumps({key: value}, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError):
            raise InputRefused(f"{word!r}: write text in UTF-8, or finite numbers") from None
    return values


def _until(taken: ActTaken, goal: LifeState, lines: Iterable[StateChange], *, sleeps: bool) -> None:
    """Print changes of states until the tenant has reached `goal` on each device.

    Only states after the act count, however short they last. `sleeps` is True if the server's
    tenants can sleep. Raises `CommandFailed` if the tenant fails, is removed or is told to reach
    another state, or if the server ends.
    """
    answers = taken.devices or {"": taken}
    left = {device: one.revision for device, one in answers.items() if one.state != goal}
    changes = iter(lines)
    while left:
        if (change := next(changes, None)) is None:
            raise CommandFailed(f"the server ended before {taken.tenant} was {goal}")
        revision = left.get(change.device)
        if change.tenant != taken.tenant or revision is None or change.revision < revision:
            continue
        if change.act:
            _check_goal(change, revision, goal, sleeps=sleeps)
        elif change.state == goal:
            typer.echo(_is_now(change))
            del left[change.device]
        else:
            _check_may_come(change)


def _check_goal(change: StateChange, revision: int, goal: str, *, sleeps: bool) -> None:
    """Raise `CommandFailed` if `change`, an operator's act, overrides the command that waits for
    the state `goal`: the act has a later revision than `revision`, and leads to another state.
    `sleeps` is True if the server's tenants can sleep."""
    if change.revision > revision and target(OperatorAct(change.act), sleeps=sleeps) != goal:
        raise CommandFailed(
            f"{change.tenant} was told to {change.act} meanwhile, by another command: "
            f"it was not {goal} before"
        )


def _check_may_come(change: StateChange) -> None:
    """Raise `CommandFailed` if the tenant has failed or was removed, so that waiting is of no
    use.
    """
    if change.state == LifeState.FAILED:
        raise CommandFailed(f"{change.tenant} has failed: {change.reason or 'see its log'}")
    if change.state == ABSENT:
        raise CommandFailed(f"{change.tenant} was removed meanwhile")
