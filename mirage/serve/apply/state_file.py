"""State file: the configuration that was applied last, which outlives the server.

The file is replaced as a whole: if the server is killed at any moment, the file has the old
configuration or the new one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mirage.config import ConfigError, current
from mirage.errors import CommandFailed
from mirage.private_file import replace_private
from mirage.serve.apply.source import Written, hash_of

STATE_FORM = 1


class AppliedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Form of the file, as JSON."""

    form: int
    sha256: str
    """Hash of the server's configuration file at the last apply."""
    folder: str
    """Folder that paths in the configuration are relative to."""
    configuration: dict[str, Any]


class StartChoice(NamedTuple):
    """Configuration to start with, and a line about that choice; the line is empty if the file and
    the state file do not differ, or only one exists.
    """

    written: Written
    line: str = ""


class StateFile:
    """State file at `path`; with None nothing is read or written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def choose(self, file: Written) -> StartChoice:
        """Configuration to start with: the one applied last, unless `file` has changed since.

        Raises `ConfigError` if the state file cannot be read, or its folder cannot be written.
        """
        if self.path is None:
            return StartChoice(file)
        if not self.path.parent.is_dir() or not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--state {self.path}: its folder is missing, or cannot be written: make it, or "
                "name another file"
            )
        state = self._read(self.path)
        if state is None:
            return StartChoice(file)
        if state.sha256 != file.sha256:
            return StartChoice(
                file,
                f"{file.path} has changed since {self.path} was written: {file.path} counts, and "
                "what operators applied beside it does not",
            )
        applied = Written(current(state.configuration, self.path), self.path, Path(state.folder))
        if applied.raw == file.raw and applied.folder == file.folder:
            return StartChoice(file)
        return StartChoice(
            applied,
            f"{self.path} counts: it was applied after {file.path}, which has not changed since",
        )

    def write(self, one: Written, sha256: str) -> None:
        """Replace the state file; `sha256` is the hash of the server's configuration file.

        Raises `OSError` if it cannot be written; the old file is left then.
        """
        if self.path is None:
            return
        state = AppliedState(STATE_FORM, sha256, str(one.folder), one.raw)
        replace_private(self.path, msgspec.json.encode(state, enc_hook=str))

    def _read(self, path: Path) -> AppliedState | None:
        """Content of the file; None if there is none. Raises `ConfigError` if the file cannot be
        read or has another form."""
        try:
            state = msgspec.json.decode(path.read_bytes(), type=AppliedState)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--state {path}: it cannot be read ({why}): remove it, and the configuration file "
                "counts"
            ) from None
        if state.form != STATE_FORM:
            raise ConfigError(
                f"--state {path}: it has form {state.form}, this version reads {STATE_FORM}: "
                "remove it, and the configuration file counts"
            )
        return state


class KeptState:
    """State file of a running server. `keep` writes a configuration into it before the server
    applies that configuration, unless the file has it already."""

    def __init__(self, state: StateFile, path: Path, written: Written, sha256: str) -> None:
        """`path` is the server's configuration file, which had the hash `sha256` when `written`,
        the configuration in use at the start, was applied."""
        self._state, self._path = state, path
        self._base, self._has = sha256, (written, sha256)
        self._folder = path.parent.absolute()

    @property
    def keeps(self) -> bool:
        """True if there is a state file."""
        return self._state.path is not None

    def outlives(self, wanted: Written) -> bool:
        """True if the next start of the server would use `wanted`. It reads the disk."""
        with suppress(OSError, UnicodeDecodeError):
            text = self._path.read_text(encoding="utf-8")
            return self.keeps or (wanted.sha256 == hash_of(text) and wanted.folder == self._folder)
        return self.keeps

    def keep(self, wanted: Written) -> None:
        """Write the configuration `wanted` into the state file, unless the file has it already.
        Blocks for the disk. Raises `CommandFailed` if the file cannot be written.
        """
        base = self._base
        with suppress(OSError, UnicodeDecodeError):
            now = hash_of(self._path.read_text(encoding="utf-8"))
            base = now if wanted.sha256 == now else base
        if (wanted, base) != self._has:
            try:
                self._state.write(wanted, base)
            except OSError as error:
                raise CommandFailed(
                    f"--state {self._state.path}: it cannot be written ({error.strerror}): "
                    "nothing was applied"
                ) from None
            self._has = wanted, base
        self._base = base
