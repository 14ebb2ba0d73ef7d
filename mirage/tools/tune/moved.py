"""``tuned.yaml`` for a folder: paths in it are rewritten relative to this folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage.config import Config
from mirage.serve.adapting import adapters
from mirage.tools.tune import written
from mirage.tools.tune.question import Question, raw
from mirage.tools.tune.space import changes


def tuned(question: Question, config: Config, reasons: Sequence[str], folder: Path) -> str:
    """Text of the file, to be written into `folder`. Raises `ConfigError` if the question's own
    file cannot be read any more.
    """
    content = raw(question.path)
    known = adapters.beside(question.config, question.path.parent.resolve())
    for entry, tenant, before in zip(
        content["tenants"], known.tenants, question.config.tenants, strict=True
    ):
        entry["model"] = os.path.relpath(tenant.model, folder.resolve())
        if tenant.engine_args != before.engine_args:
            entry["engine_args"] = dict(tenant.engine_args)
    _move(content.get("device"), "profile", question.config.device.profile, folder)
    if (ssd := question.config.tiers.ssd) is not None:
        _move(content["tiers"]["ssd"], "directory", ssd.directory, folder)
    if isinstance(content.get("replay"), dict) and "trace" in content["replay"]:
        content["replay"]["trace"] = _seen(content["replay"]["trace"], question.path.parent, folder)
    return written.tuned(content, changes(question.config, config), reasons)


def _move(section: Any, key: str, path: str | Path | None, folder: Path) -> None:
    """Rewrite a path relative to `folder`. `path` is the loaded value; a bundled name, or None for
    a missing key, is left as it is.
    """
    if path is not None and Path(path).is_absolute() and not Path(section[key]).is_absolute():
        section[key] = os.path.relpath(path, folder.resolve())


def _seen(named: Any, near: Path, folder: Path) -> Any:
    """Files of `replay.trace` relative to another folder; names that are no file are left as they
    are.
    """
    if isinstance(named, dict):
        return {name: _seen(file, near, folder) for name, file in named.items()}
    path = near / named
    return os.path.relpath(path.resolve(), folder.resolve()) if path.is_file() else named
