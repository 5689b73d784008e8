"""Run the code of a page, and keep what it prints and draws beside it.

    python scripts/pages.py docs/gallery.md             # run, and write outputs and pictures
    python scripts/pages.py --notebook docs/tutorials/llm-cascade.md

The Python blocks of a page run from top to bottom in one namespace. A block of text right behind a
Python block is what it printed; ``<!-- times vary -->`` between the two marks output that differs
from run to run. A picture of ``img/pages/`` is the file of that name that the code wrote.
Tests compare the same blocks (``tests/test_docs.py``).
"""

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\n(?P<varies><!-- times vary -->\n\n?)?```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of Python, what the page shows of its output, and what it printed."""

    code: str
    shown: str | None
    varies: bool
    printed: str


def run(text: str) -> Iterator[Block]:
    """Run the blocks of a page in the working directory.

    Args:
        text: The page, in Markdown.

    Yields:
        The blocks, in order.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match["code"], "<page>", "exec"), names)  # noqa: S102 - our pages
        yield Block(match["code"], match["output"], bool(match["varies"]), printed.getvalue())


def with_outputs(text: str, blocks: list[Block]) -> str:
    """Return a page with the outputs of its blocks behind them."""
    results = iter(blocks)

    def replace(_: re.Match[str]) -> str:
        block = next(results)
        code = f"```python\n{block.code}```\n"
        mark = "<!-- times vary -->\n\n" if block.varies else ""
        return code + (f"\n{mark}```text\n{block.printed}```\n" if block.printed else "")

    return BLOCK.sub(replace, text)


def notebook(text: str, blocks: list[Block]) -> str:
    """Return a page as a Jupyter notebook, outputs included."""
    cells, start = [], 0
    for block, match in zip(blocks, BLOCK.finditer(text), strict=True):
        cells.append(_prose(text[start : match.start()], len(cells)))
        cells.append(_code(block, len(cells)))
        start = match.end()
    cells.append(_prose(text[start:], len(cells)))
    book = {
        "cells": [cell for cell in cells if cell["source"]],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _prose(text: str, number: int) -> dict[str, object]:
    # Links of a page lead to other pages; a notebook stands alone.
    plain = re.sub(r"(?<!!)\[([^\]]*)\]\([^)]*\)", r"\1", text.strip())
    source = plain.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}


def _code(block: Block, number: int) -> dict[str, object]:
    lines = block.printed.splitlines(keepends=True)
    stream = {"name": "stdout", "output_type": "stream", "text": lines}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": [stream] if block.printed else [],
        "source": block.code.rstrip("\n").splitlines(keepends=True),
    }


def main() -> None:
    """Run pages; write their outputs, pictures and notebooks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--notebook", action="store_true", help="also write examples/notebooks")
    args = parser.parse_args()
    for page in args.pages:
        path, text = page.resolve(), page.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.chdir(folder):
                blocks = list(run(text))
            for name in re.findall(r"img/pages/([\w.-]+)", text):
                shutil.copy(Path(folder, name), ROOT / "docs" / "img" / "pages" / name)
        new = with_outputs(text, blocks)
        path.write_text(new, "utf-8")
        print(f"{os.path.relpath(path, ROOT)}: {len(blocks)} blocks")
        if args.notebook:
            target = ROOT / "examples" / "notebooks" / f"{path.stem}.ipynb"
            target.parent.mkdir(exist_ok=True)
            target.write_text(notebook(new, blocks), "utf-8")


if __name__ == "__main__":
    main()
