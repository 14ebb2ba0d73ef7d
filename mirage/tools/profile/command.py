"""``mirage profile``: measures this machine with the models of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirage.options import ConfigPath


def profile_command(
    config: ConfigPath,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The hardware file. Beside it, under its name: .json, .html, and .parts.",
        ),
    ] = Path("out/profile.yaml"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Measure fewer points and repeats, in less than two minutes."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what has been measured already.")
    ] = False,
) -> None:
    """Measure this machine with the real engines of CONFIG, and write a hardware file.

    Nothing else should run meanwhile. After an interruption the same command continues.
    """
    from mirage.config import load
    from mirage.serve.adapting import adapters
    from mirage.serve.models.hubs import from_cache
    from mirage.tools.fixed_shares import with_fixed_shares
    from mirage.tools.profile.plan import QUICK, THOROUGH
    from mirage.tools.profile.whole import checked, profile

    found = from_cache(with_fixed_shares(load(config), "profile"))
    known = adapters.beside(found, config.parent)
    profile(config, known, checked(output), QUICK if quick else THOROUGH, fresh=fresh)
