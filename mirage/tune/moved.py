"""``tuned.yaml`` in its folder: paths that the file names are seen from there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mirage.config import Config
from mirage.serve import adapters
from mirage.tune import written
from mirage.tune.question import Question, raw
from mirage.tune.space import changes


def tuned(question: Question, config: Config, reasons: Sequence[str], folder: Path) -> str:
    """The file's text, to be written into `folder`. Raises `ConfigError`, as loading it would."""
    content = raw(question.path)
    known = adapters.beside(question.config, question.path.parent.resolve())
    for entry, tenant, before in zip(
        content["tenants"], known.tenants, question.config.tenants, strict=True
    ):
        entry["model"] = os.path.relpath(tenant.model, folder.resolve())
        if tenant.engine_args != before.engine_args:
            entry["engine_args"] = dict(tenant.engine_args)
    return written.tuned(content, changes(question.config, config), reasons)
