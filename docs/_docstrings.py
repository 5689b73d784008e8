"""Docstrings as the site shows them: examples as code, roles as names."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""The lines of an example, from its first prompt to the next blank line."""
ROLE = re.compile(r":(?:func|class|meth|mod|data):`~?([^`]+)`")
"""A name with the role that it plays."""


class Docstrings(Extension):
    """Change every docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence the examples of an object's docstring, and drop roles."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
