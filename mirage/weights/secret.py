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
    """The secret in `path`, a file that only this user can access. Raises `WeightsRefused` if it
    cannot be read, is open to others, or is too short or not printable.
    """
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
    """True if the value of an Authorization header has the secret. The comparison takes as long
    wherever a wrong value differs.
    """
    told = (given or "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(told, (SCHEME + secret).encode())


def is_private(host: str) -> bool:
    """True if `host` is an address that the Internet cannot reach. Raises `ValueError` if it is no
    address.
    """
    address = ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return not (address.is_global or address.is_unspecified or address.is_multicast)


def check_address(host: str) -> None:
    """Raises `WeightsRefused` unless `host` is an address that the Internet cannot reach."""
    try:
        private = is_private(host)
    except ValueError:
        raise WeightsRefused(f"--host {host}: write an address of this machine") from None
    if not private:
        raise WeightsRefused(
            f"--host {host}: weights and their secret travel without TLS: write a loopback or "
            "private address of this machine"
        )
