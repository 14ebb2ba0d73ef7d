"""The live page, one file with its script and style inside, and the headers that it comes with.

The page tells nothing by itself: its script asks for the overview, with the key that is typed.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

PAGE_ROUTE = "/mirage"
OVERVIEW_ROUTE = "/mirage/overview"


@cache
def page_html() -> bytes:
    """The page; the same for everybody."""
    return (files("mirage.serve.overview") / "page.html").read_bytes()


@cache
def page_headers() -> dict[str, str]:
    """Headers by which a browser runs the page's own script alone, and asks this server alone."""
    policy = (
        "default-src 'none'",
        f"script-src {_hash('script')}",
        f"style-src {_hash('style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }


def _hash(tag: str) -> str:
    """Hash of the page's only element `tag`, as a policy names it."""
    (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page_html(), re.DOTALL)
    return f"'sha256-{b64encode(sha256(text).digest()).decode()}'"
