"""Certificate of the server's address, and the TLS context made of it."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from pathlib import Path

from mirage.config import ConfigError, HttpSection

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds between two attempts to read a certificate, without which no client can be served."""
OF_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""Mode bits that must not be set on a key's file: all rights of others, and write and execute
rights of the group.
"""


class TlsCertificate:
    """Certificate and key, as their files were when they were last read."""

    context: ssl.SSLContext
    """TLS context for new connections."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key

    async def read(self) -> None:
        """Read the files, trying once a second until they can be read."""
        said = ""
        while True:
            try:
                self.context = tls_context(*self._files)
                return
            except ConfigError as error:
                if str(error) != said:
                    log.error("nobody can be served: %s", error)
                said = str(error)
            await asyncio.sleep(AGAIN_S)

    def moves(self, certificate: Path, key: Path) -> None:
        """Read the certificate from these files from now on. If they are other files than before,
        new connections get their certificate.
        """
        if (certificate, key) != self._files:
            self._files = certificate, key
            self.renew()

    def renew(self) -> None:
        """Read the files again, for new connections; if that fails the old certificate stays in
        use.
        """
        try:
            self.context = tls_context(*self._files)
        except ConfigError as error:
            log.error("the certificate stays as it was: %s", error)


def check_tls(http: HttpSection) -> None:
    """Raise `ConfigError` if section `http` names a certificate and a key that cannot be used."""
    if (tls := http.tls) is not None:
        tls_context(tls.certificate, tls.key)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS context for version 1.2 and later, with this certificate and key. Raises `ConfigError` if
    they cannot be read or used, or if others may read the key.
    """
    _check_readable("certificate", certificate)
    _check_readable("key", key)
    _check_private(key)

    def encrypted() -> str:
        raise ConfigError(f"http.tls.key: {key} has a passphrase: write it without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"http.tls.key: {key} does not belong to the certificate {certificate}: "
                "name the key that it was made for"
            ) from None
        why = error.reason or "no PEM"
        raise ConfigError(
            f"http.tls: {certificate} and {key} cannot be used ({why}): name a certificate, with "
            "those between it and its root, and its key, both as PEM"
        ) from None
    except OSError as error:
        raise ConfigError(f"http.tls: cannot be read ({error.strerror})") from None
    return context


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"http.tls.{name}: {path} cannot be read ({why}): name a file that this user may read"
        ) from None


def _check_private(key: Path) -> None:
    """Raise `ConfigError` if a key's file is open to other users.

    The group may read a key that belongs to another user, but not one of this user.
    """
    status = key.stat()
    rights = OF_OTHERS if status.st_uid != os.geteuid() else OF_OTHERS | stat.S_IRGRP
    if status.st_mode & rights:
        raise ConfigError(
            f"http.tls.key: the mode {stat.S_IMODE(status.st_mode):04o} of {key} lets others read "
            f"or change it: chmod 600 {key}"
        )
