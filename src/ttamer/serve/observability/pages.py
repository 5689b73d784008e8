"""HTML pages of the package: their bytes, and headers that allow nothing but the page itself."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

__all__ = ["load_page"]


def load_page(package: str, name: str) -> tuple[bytes, dict[str, str]]:
    """Return a page of a package and the headers that it is sent with.

    The browser runs the one inline script and style of the page, by their hashes, and connects to
    nothing but the page's own server.
    """
    html = files(package).joinpath(name).read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_allowed(html, 'script')}; "
        f"style-src {_allowed(html, 'style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    return html.encode(), {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-store",
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


def _allowed(page: str, tag: str) -> str:
    """Return the hash by which a browser accepts the one inline script or style of the page."""
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
