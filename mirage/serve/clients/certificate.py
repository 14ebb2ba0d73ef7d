"""The certificate of the address that all are served at, and the TLS that is spoken by it."""

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
"""Seconds between two attempts to read a certificate without which nobody can be served."""
OF_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""Rights that nobody but the owner may have to a key."""


class TlsCertificate:
    """A certificate with its key, as their files were when they were read last."""

    context: ssl.SSLContext
    """TLS for the next connection."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key

    async def read(self) -> None:
        """Read it, again and again until it can be read."""
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

    def renew(self) -> None:
        """Have it for new connections as it is now; one that cannot be read changes nothing."""
        try:
            self.context = tls_context(*self._files)
        except ConfigError as error:
            log.error("the certificate stays as it was: %s", error)


def check_tls(http: HttpSection) -> None:
    """Raises `ConfigError` if there are a certificate and a key that cannot be used."""
    if (tls := http.tls) is not None:
        tls_context(tls.certificate, tls.key)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS from 1.2 on with this certificate and its key. Raises `ConfigError`."""
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
    """A key of somebody else may be open to this user by its group, one's own to nobody."""
    status = key.stat()
    rights = OF_OTHERS if status.st_uid != os.geteuid() else OF_OTHERS | stat.S_IRGRP
    if status.st_mode & rights:
        raise ConfigError(
            f"http.tls.key: the mode {stat.S_IMODE(status.st_mode):04o} of {key} lets others read "
            f"or change it: chmod 600 {key}"
        )
