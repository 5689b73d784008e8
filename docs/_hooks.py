"""What the site needs beyond its pages: public names, links that leave the site, whole words.

A reference page names a package; its public names, those that its ``__init__`` imports as
themselves, are listed here. Links to files of the repository outside the site become their paths.
Words of inline code are marked, so that no line ends at a hyphen in them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)")
"""A link that climbs out of the folder of its page."""
REFERENCE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
"""The line of a reference page that names its package."""
CODE = re.compile(r"(?<!</span>)<code>[^<]+</code>")
"""Inline code; a block of code begins with an empty span."""
WORD = re.compile(r"(?<=[\s>])(?=[^\s<>]*[^\w\s<>])[^\s<>]{2,36}(?=[\s<])")
"""A word with a character at which browsers end lines, unless it is wider than a phone."""
DOCS = Path(__file__).parent
ERRORS = DOCS.parent / "src" / "ttamer" / "errors.py"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """List public names, and replace links to files outside the docs; they must exist."""
    folder = (DOCS / page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        target = found[2]
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS):
            return found[0]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {target} does not exist")
        return f"{found[1]} (`{path.relative_to(DOCS.parent)}` in the repository)"

    return REFERENCE.sub(_public, OUTSIDE.sub(replace, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Mark the words of inline code."""
    return CODE.sub(lambda code: WORD.sub(r'<span class="word">\g<0></span>', code[0]), html)


def _public(found: re.Match[str]) -> str:
    """Return one reference for each public name of a package, errors last."""
    place = DOCS.parent / "src" / found[1].replace(".", "/")
    if not place.is_dir():
        return f"::: {found[1]}"  # a module documents itself
    stub = place / "__init__.py"
    errors = re.findall(r"^class (\w+)", ERRORS.read_text("utf-8"), re.MULTILINE)
    public = set(re.findall(r"(\w+) as \1\b", stub.read_text("utf-8")))
    names = sorted(public, key=lambda name: (name in errors, name.lower()))
    return "\n\n".join(f"::: {found[1]}.{name}" for name in names if name != "__version__")
