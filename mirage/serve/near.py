"""Test for requests of programs on this machine: no page in a browser, no proxy. Pure.

The peer's address alone does not say so. A proxy on this machine has it for all its clients, and a
page of any site can send requests to this machine through its visitor's browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

PASSED_ON = {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
"""Headers by which a proxy tells of itself, beside those that begin with `X-Forwarded-`."""
OWN_SITE = {"none", "same-origin"}
"""Values of `Sec-Fetch-Site` of a browser by itself, and for a page of this very server."""
DIRECTLY = "ask 127.0.0.1 directly"


def why_far(remote: str | None, headers: Mapping[str, str], listening: str = "") -> str | None:
    """Reason why a request may be somebody else's, and what to do; None if it is near.

    `remote` is the peer's address, `listening` the name that the server was told to listen on.
    """
    if not _loopback((remote or "").split("%")[0]):
        return "the request comes from another machine: ask 127.0.0.1"
    for name, value in headers.items():
        known = name.lower()
        if known in PASSED_ON or known.startswith("x-forwarded-"):
            return f"{name} says that a proxy has passed it on: {DIRECTLY}"
        if known == "origin" or (known == "sec-fetch-site" and value.lower() not in OWN_SITE):
            return f"{name} says that a page in a browser has sent it: {DIRECTLY}"
    hosts = [value for name, value in headers.items() if name.lower() == "host"]
    if len(hosts) != 1 or not _names_this(hosts[0], listening):
        return f"Host names another server, as after DNS rebinding: {DIRECTLY}"
    return None


def _names_this(host: str, listening: str) -> bool:
    """`host` is what a client believes it talks to, with a port or without."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if "@" in host or not name:
        return False
    return name in ("localhost", listening.lower()) or _loopback(name)


def _loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
