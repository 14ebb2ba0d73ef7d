"""Loading of an experiment's file, for one device or several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mirage.config import ConfigError, read_yaml, validated
from mirage.simulate import experiment, variants
from mirage.simulate.experiment import Setup
from mirage.simulate.fleet.schema import FleetExperiment
from mirage.simulate.fleet.setup import FleetSetup


def load(
    path: Path, known: Mapping[str, variants.Variant] = variants.VARIANTS
) -> Setup | FleetSetup:
    """Read and check one experiment, whose policies are names in `known`.

    A file with the key `devices` gives a `FleetSetup`. Raises `ConfigError` if the file cannot be
    read, or the experiment cannot be simulated.
    """
    raw = read_yaml(path)
    if not (isinstance(raw, dict) and "devices" in raw):
        return experiment.load(path, known)
    asked = experiment.with_traces(validated(FleetExperiment, raw, path), path.parent)
    try:
        return FleetSetup(asked, path.parent, known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
