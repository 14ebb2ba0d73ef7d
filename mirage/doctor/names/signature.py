"""Parameters of a function from its source, without types and default values.

A table of names keeps them as `self, request, *, delay=...`. `inspect` binds calls to them: nothing
is imported or run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature

from mirage.doctor.names.syntax import Function

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
OPTIONAL = ast.Constant(...)
SELF = re.compile(r"^self(, |$)")


@dataclass(frozen=True)
class CallArguments:
    """Arguments of one call: those by position, and those by name."""

    positional: tuple[str, ...]
    """Parameter names of the positional arguments; empty strings for unknown names."""
    keywords: tuple[str, ...] = ()
    more: bool = False
    """True if further arguments may follow: `*args`, `**kwargs`, or `...`."""

    @staticmethod
    def of(node: ast.Call) -> CallArguments:
        """Arguments of a call in our sources."""
        plain = [each for each in node.args if not isinstance(each, ast.Starred)]
        named = [each.arg for each in node.keywords if each.arg is not None]
        more = len(plain) < len(node.args) or len(named) < len(node.keywords)
        return CallArguments(("",) * len(plain), tuple(named), more)

    @staticmethod
    def written(node: ast.Call) -> CallArguments:
        """Arguments of a call written with parameter names, as `free(blocks, later=..., ...)`."""
        names = tuple(each.id for each in node.args if isinstance(each, ast.Name))
        keywords = tuple(each.arg for each in node.keywords if each.arg is not None)
        return CallArguments(names, keywords, more=len(names) < len(node.args))


def said(arguments: ast.arguments, drop: int = 0) -> str:
    """Parameters after the first `drop`, as a table has them."""
    bare = _bare(arguments)
    for _ in range(drop):
        first = bare.posonlyargs or bare.args
        del first[:1]
    return ast.unparse(bare)


def of_method(node: Function) -> str | None:
    """A method's parameters as a table has them, without the first for a classmethod; None for a
    property.
    """
    marks = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    if marks & {"property", "cached_property", "setter"}:
        return None
    return said(node.args, drop=1 if "classmethod" in marks else 0)


def without_self(parameters: str) -> str:
    """Parameters that callers of a bound method pass."""
    return SELF.sub("", parameters)


def _bare(arguments: ast.arguments) -> ast.arguments:
    def names(args: list[ast.arg]) -> list[ast.arg]:
        return [ast.arg(each.arg) for each in args]

    def name(arg: ast.arg | None) -> ast.arg | None:
        return None if arg is None else ast.arg(arg.arg)

    return ast.arguments(
        posonlyargs=names(arguments.posonlyargs),
        args=names(arguments.args),
        vararg=name(arguments.vararg),
        kwonlyargs=names(arguments.kwonlyargs),
        kw_defaults=[None if each is None else OPTIONAL for each in arguments.kw_defaults],
        kwarg=name(arguments.kwarg),
        defaults=[OPTIONAL for _ in arguments.defaults],
    )


def signature(parameters: str) -> Signature:
    """`Signature` of parameters in the form of `said`. Raises `SyntaxError` for other text."""
    node = ast.parse(f"lambda {parameters}: 0", mode="eval").body
    assert isinstance(node, ast.Lambda)
    return Signature(list(_parameters(node.args)))


def _parameters(args: ast.arguments) -> Iterator[Parameter]:
    positional = [*args.posonlyargs, *args.args]
    required = len(positional) - len(args.defaults)
    for index, arg in enumerate(positional):
        unnamed = index < len(args.posonlyargs)
        kind = Parameter.POSITIONAL_ONLY if unnamed else Parameter.POSITIONAL_OR_KEYWORD
        yield Parameter(arg.arg, kind, default=... if index >= required else Parameter.empty)
    if args.vararg is not None:
        yield Parameter(args.vararg.arg, Parameter.VAR_POSITIONAL)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        optional = Parameter.empty if default is None else ...
        yield Parameter(arg.arg, Parameter.KEYWORD_ONLY, default=optional)
    if args.kwarg is not None:
        yield Parameter(args.kwarg.arg, Parameter.VAR_KEYWORD)


def why_not_called(parameters: str, call: CallArguments) -> str | None:
    """Reason why a function with `parameters` cannot take `call`; None if it can."""
    whole = signature(parameters)
    bind = whole.bind_partial if call.more else whole.bind
    try:
        bind(*call.positional, **dict.fromkeys(call.keywords))
    except TypeError as error:
        return str(error)
    for name, place in zip(call.positional, whole.parameters, strict=False):
        if name not in ("", place):
            return f"{place!r} has the place of {name!r}"
    return None


def why_no_replacement(theirs: str, ours: str) -> str | None:
    """Reason why a function with parameters `ours` cannot replace one with `theirs`; None if it
    accepts the shortest and the longest calls that the replaced function accepts.
    """
    taken = signature(ours)
    for positional, named in _calls(signature(theirs)):
        try:
            got = taken.bind(*positional, **dict.fromkeys(named)).arguments
        except TypeError as error:
            return str(error)
        for name, place in got.items():
            if isinstance(place, str) and place != name and place in taken.parameters:
                return f"{name!r} has the place of {place!r}"
    return None


def _calls(theirs: Signature) -> Iterator[tuple[list[str], list[str]]]:
    """Shortest and longest calls of a function: names passed by position, and names passed by
    keyword.
    """
    every = [*theirs.parameters.values()]
    ordered = [each for each in every if each.kind in POSITIONAL]
    by_name = [each for each in every if each.kind is Parameter.KEYWORD_ONLY]
    more = {each.kind: [f"more {each.name}"] for each in every}
    for needed in (True, False):
        placed, named = (
            [each.name for each in part if not needed or each.default is Parameter.empty]
            for part in (ordered, by_name)
        )
        yield placed, named
        first = [each.name for each in ordered if each.kind is Parameter.POSITIONAL_ONLY]
        yield first, [name for name in placed if name not in first] + named
    yield placed + more.get(Parameter.VAR_POSITIONAL, []), named
    yield placed, named + more.get(Parameter.VAR_KEYWORD, [])
