"""The live page, one file with its script and style, and its HTTP headers.

The page itself contains no data: its script asks for the overview, with a key that the user types.
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
    """The page as HTML; it is the same for all clients."""
    return (files("mirage.serve.overview") / "page.html").read_bytes()


@cache
def page_headers() -> dict[str, str]:
    """Headers of the page, by which browsers run only its own script and let it ask only this
    server.
    """
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
    """Hash of the content of the page's only element `tag`, in the form of a content security
    policy.
    """
    (text,) = re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page_html(), re.DOTALL)
    return f"'sha256-{b64encode(sha256(text).digest()).decode()}'"
