"""``mirage explain``: the paper's arithmetic for a configuration. No engine runs."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from mirage.config import Config, ConfigError, load
from mirage.control.rules import Rules
from mirage.options import ConfigPath, JsonOption, hardware_option
from mirage.printed import json_object
from mirage.serve.models.hubs import from_cache
from mirage.tools.explain.arithmetic import explained
from mirage.tools.explain.machine import machine
from mirage.tools.explain.subjects import subjects
from mirage.tools.explain.table import show
from mirage.tools.explain.words import sentences
from mirage.tools.fixed_shares import with_fixed_shares

SCHEMA_VERSION = 2
MOST_BATCHES, LARGEST_BATCH = 32, 2**20


def explain_command(
    config: ConfigPath,
    hardware: Annotated[
        str | None,
        hardware_option("device.profile; without it gh200 for kind cuda, host for kind host"),
    ] = None,
    context: Annotated[
        int, typer.Option(min=1, max=2**30, help="Tokens of each request of a batch.")
    ] = 1024,
    batch: Annotated[
        str, typer.Option(help="Batch sizes: requests that decode together.", metavar="A,B")
    ] = "1,8,32,128",
    as_json: JsonOption = False,
) -> None:
    """Print the paper's arithmetic for CONFIG: what hides, what it brings, from which link on.

    Nothing is run, and vLLM is not asked: sizes are those of the models' folders, times those of a
    hardware profile.
    """
    known = from_cache(with_fixed_shares(load(config), "explain"))
    explain(known, hardware, context, parse_batches(batch), as_json)


def explain(
    config: Config, named: str | None, context: int, batches: list[int], as_json: bool
) -> None:
    """Print the arithmetic of streaming for each tenant as text, or as one JSON object (`as_json`).
    Raises `ConfigError` with one line if the profile or a model's folder cannot be read, or no
    tenant can be explained.
    """
    on = machine(named, config.device)
    known = subjects(config, on.hardware, context)
    rules = Rules.served(config)
    found = [explained(each, on.hardware, rules, batches) for each in known.subjects]
    link = on.hardware.link_gb_s.value
    said = sentences(config, known.fits, found, link)
    if not as_json:
        show(on, found, known.refused, said, Console())
        return
    profile = {"name": on.name, "title": on.hardware.title, "why": on.why, "link_gb_s": link}
    content = {
        "hardware": profile,
        "tenants": [asdict(one) for one in found],
        "refused": known.refused,
        "sentences": said,
    }
    typer.echo(json_object(SCHEMA_VERSION, content))


def parse_batches(text: str) -> list[int]:
    """Sizes of batches in a text as ``"1,8,32"``, without repetitions. Raises `ConfigError` with
    one line for any other text, and for too many or too large numbers.
    """
    words = [word.strip() for word in text.split(",")]
    whole = all(re.fullmatch(r"\d{1,9}", word, re.ASCII) for word in words)
    found = list(dict.fromkeys(map(int, words))) if whole else []
    if not found or min(found) < 1 or max(found) > LARGEST_BATCH or len(found) > MOST_BATCHES:
        raise ConfigError(
            f"--batch {text!r}: write 1 to {MOST_BATCHES} whole numbers from 1 to "
            f"{LARGEST_BATCH}, as 1,8,32"
        )
    return found
