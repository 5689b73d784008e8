"""The public names of a package: those that its ``__init__`` imports as themselves."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path


def names_of(package: str) -> list[str]:
    """Return the public names of a package, or none."""
    module = importlib.import_module(package)
    if package == "ttamer":
        return dir(module)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    imports = [
        n for n in tree.body if isinstance(n, ast.ImportFrom) and any(a.asname for a in n.names)
    ]
    if not imports and package != "ttamer.cli":  # a package that is one module defines its names
        return sorted(
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
        )
    return sorted(alias.name for node in imports for alias in node.names if alias.asname)
