"""The secret that the machines of a cluster share, and checks of where it may be sent."""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from pathlib import Path

from mirage.private_file import read_private
from mirage.weights.problems import WeightsRefused

LEAST, MOST = 16, 1024
"""Fewest and most characters of a secret."""
MAKE = "(umask 077; head -c 32 /dev/urandom | base64 > FILE) makes one"
SCHEME = "Bearer "


def read_secret(path: Path) -> str:
    """The secret in `path`, a file that only this user can access. Raises `WeightsRefused`."""
    try:
        secret = read_private(path, MOST).decode("ascii").strip()
    except OSError as error:
        raise WeightsRefused(
            f"{path}: the secret of the cluster cannot be read ({error.strerror or error}): "
            f"name a file of this user with mode 0600; {MAKE}"
        ) from None
    except UnicodeDecodeError:
        secret = ""
    if len(secret) < LEAST or not secret.isprintable():
        raise WeightsRefused(f"{path}: a secret has {LEAST} printable characters or more; {MAKE}")
    return secret


def header(secret: str) -> dict[str, str]:
    """Header of a request that carries the secret."""
    return {"Authorization": SCHEME + secret}


def is_told(given: str | None, secret: str) -> bool:
    """True if the value of an Authorization header has the secret. The time does not depend on the
    wrong part.
    """
    told = (given or "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(told, (SCHEME + secret).encode())


def check_address(host: str) -> None:
    """Raises `WeightsRefused` unless `host` is an address that the Internet cannot reach."""
    try:
        address = ip_address(host)
    except ValueError:
        raise WeightsRefused(f"--host {host}: write an address of this machine") from None
    if address.is_global or address.is_unspecified or address.is_multicast:
        raise WeightsRefused(
            f"--host {host}: weights and their secret travel without TLS: write a loopback or "
            "private address of this machine"
        )
