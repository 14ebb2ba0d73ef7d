"""The files of ``--output``: tested before any computation, replaced only when all are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from mirage.config import ConfigError


def make_room(output: Path, files: Sequence[Path]) -> None:
    """Make the folder of all `files` of an `output`, and test that it can be written.

    Raises `ConfigError` with one line if one of the files could not be written.
    """
    folder = files[0].parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix="."):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output {output}: cannot be written ({error.strerror}): name another"
        ) from None
    for file in files:
        if file.is_dir():
            raise ConfigError(f"--output {output}: {file.name} is a folder there: name another")


def write_all(texts: Mapping[Path, str]) -> None:
    """Write all files of one folder: first to a temporary folder beside them, so that a full disk
    leaves the old ones; then they are moved one after the other.

    Raises `OSError` with the folder's name, which an error of a full disk does not have.
    """
    folder = next(iter(texts)).parent
    try:
        with TemporaryDirectory(dir=folder, prefix=".") as beside:
            for path, text in texts.items():
                (Path(beside) / path.name).write_text(text, encoding="utf-8")
            for path in texts:
                (Path(beside) / path.name).replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
