"""Program `mirage`: its commands, and the run of one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage import __version__
from mirage.cli.check import check_command
from mirage.cli.serve import serve_command
from mirage.cli.table import CLUSTER, OWN_MODULES, SERVING, TOOLS, TOP, check_extra, check_name
from mirage.errors import CommandFailed, InputRefused
from mirage.paths import word
from mirage.processes.exits import exits

if TYPE_CHECKING:
    from mirage.serve.launch.programs import Means

app = typer.Typer(
    help="Serve several language models from one device memory: parameters make room for KV.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Options of all commands."""


app.command("serve")(serve_command)
app.command("check")(check_command)


@app.command()
def models(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the models' folders.")],
) -> None:
    """Make three small demonstration models (OPT, Llama and Qwen3 shapes, random weights)."""
    from mirage.tools.demo.models import make_models

    try:
        made = make_models(folder)
    except OSError as error:
        raise CommandFailed(f"{folder}: models cannot be written ({error.strerror})") from None
    for path in made.values():
        typer.echo(path)


def main(arguments: list[str] | None = None, means: Means | None = None) -> None:
    """Run one command and exit: 0, 2 for what the user can correct, 1 for other failures.

    An error is one line on stderr, never a traceback, unless it is a fault of the program. `means`
    replaces the `Means()` that `mirage check` and `mirage serve` use by default.
    """
    with exits(interrupted="", failures=(CommandFailed,)), _usage():
        words = [word(each) for each in (sys.argv[1:] if arguments is None else arguments)]
        check_name(words)
        register_own(asked_for=words[:1])
        sys.exit(app(words or ["--help"], prog_name="mirage", standalone_mode=False, obj=means))


@contextmanager
def _usage() -> Iterator[None]:
    """Turn typer's error about a command line (an unknown command or option, a value that is
    refused or missing) into `InputRefused`.
    """
    try:
        yield
    except Exception as error:
        # A class that typer has under different names from release to release.
        if (format_message := getattr(error, "format_message", None)) is None:
            raise
        told = _of_value(error) or format_message().replace("Value error, ", "")
        raise InputRefused(f"{told}{_of_vllm(getattr(error, 'option_name', ''))}") from None


def _of_value(error: Exception) -> str | None:
    """Line about a value that an option or argument refuses, in the form of errors about
    configuration keys: its name, the value, and what to write. None for an error that does not come
    from pydantic.
    """
    from pydantic import ValidationError

    from mirage.problems import first_problem

    cause, names = error.__cause__, getattr(getattr(error, "param", None), "opts", None)
    if not isinstance(cause, ValidationError) or not names:
        return None
    return f"{names[0]}: {first_problem(cause, None)}"


def _of_vllm(option: str) -> str:
    """Advice to append to the error about an option that `vllm serve` has and MIRAGE has not: the
    key to set instead, or the reason why there is none. Empty for any other option.
    """
    from mirage.arguments.check import ArgumentRefused, normalised
    from mirage.arguments.rules import Verdict
    from mirage.arguments.table import TABLE

    try:
        (name,) = normalised({option: True})
    except ArgumentRefused:
        return ""
    if (rule := TABLE.get(name)) is None:
        return ""
    if rule.verdict is Verdict.REFUSED:
        return f": it is vLLM's, and MIRAGE refuses it: {rule.words} (docs/arguments.md)"
    own = rule.verdict is Verdict.OURS
    key = rule.words if own else "engine_args of its tenant"
    return f": it is vLLM's: set {key} instead (--write-config FILE writes a configuration)"


def register_own(asked_for: list[str]) -> None:
    """Register the commands of `OWN_MODULES`. Only the module of the command asked for is imported,
    since its function declares the options; the others get a line of help. Raises `InputRefused` if
    the packages that the command needs are absent.
    """
    for name, (module, function, summary) in OWN_MODULES.items():
        if asked_for == [name]:
            if name == "node":
                check_extra(name, "cluster", CLUSTER)
            elif name == "top":
                check_extra(name, "top", TOP)
            elif name not in SERVING:
                check_extra(name, "tools", TOOLS)
            app.command(name)(getattr(import_module(module), function))
        else:
            app.command(name, help=summary)(lambda: None)
