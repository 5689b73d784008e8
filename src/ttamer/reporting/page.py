"""The page of a report: one self-contained HTML file, from ``page.html`` and ``page.css``.

The page fetches nothing and runs no script, and its own content security policy forbids both. Every
string from outside goes through :func:`text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ttamer.reporting.style import BLANK_COLOUR, FAINT, INK, MUTED, PAPER, RULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ttamer.reporting.style import Drawn

__all__ = ["Cell", "Page", "Picture", "Tile", "inline_svg", "render", "text"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
_THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    FAINT: "var(--faint)",
    BLANK_COLOUR: "var(--blank)",
    PAPER: "var(--card)",
}
"""The colours of drawings that follow the page's light or dark theme."""


@dataclass(frozen=True)
class Tile:
    """One of the large numbers at the top of the page."""

    number: str
    """The number as shown."""
    what: str
    """What the number is."""
    more: str
    """Its interval, and what it is compared with."""
    value: float | None
    """The number in full precision."""


@dataclass(frozen=True)
class Picture:
    """A drawing with its heading and caption, or only a caption if there is nothing to draw."""

    name: str
    heading: str
    caption: str
    label: str = ""
    """The text for screen readers."""
    drawn: Drawn | None = None
    narrow: bytes = b""
    """The same drawing for narrow screens, as SVG; empty if one drawing serves both."""
    wide: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    shown: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Page:
    """The content of a report."""

    title: str
    sentence: str
    strong: str
    """The part of the sentence that is highlighted."""
    notes: Sequence[str]
    tiles: Sequence[Tile]
    pictures: Sequence[Picture]
    table_caption: str
    head: Sequence[str]
    rows: Sequence[tuple[str, str | None, Sequence[Cell]]]
    """For each family: its name, its colour, its cells."""
    left_out: Sequence[tuple[str, str]]
    provenance: Sequence[tuple[str, str]]
    remarks: Sequence[str] = field(default_factory=tuple)


def text(value: object) -> str:
    """Return text that is safe in HTML, between tags and in attributes.

    >>> text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    one_line = " ".join(str(value).split())
    return escape("".join(c if c.isprintable() else "�" for c in one_line), quote=True)


def inline_svg(svg: bytes, prefix: str, label: str) -> str:
    """Return one of our drawings for use inside HTML: it scales, and its ids are unique."""
    root = ET.fromstring(svg)  # noqa: S314 - we have just drawn it ourselves
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            element.set(name.rpartition("}")[2], _attribute(name, value, prefix))
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    """Return an attribute as the page needs it: unique ids, theme colours, two decimals."""
    if name == "id":
        return prefix + value
    if name.endswith("href") and value.startswith("#"):
        return f"#{prefix}{value[1:]}"
    value = value.replace("url(#", f"url(#{prefix}")
    if name == "style":
        for colour, variable in _THEME.items():
            value = value.replace(colour, variable)
        return re.sub(r"font: ([^;']*?)'[^;]*", r"font: \1sans-serif", value)
    if name in ("d", "x", "y", "transform"):
        return re.sub(r"(\.\d\d)\d+", r"\1", value)
    return value


def render(page: Page) -> str:
    """Return the whole page."""
    sentence = text(page.sentence)
    strong = text(page.strong)
    if page.strong:
        sentence = sentence.replace(strong, f"<em>{strong}</em>", 1)
    facts = (f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in page.provenance)
    return Template(_data_file("page.html")).substitute(
        policy=_POLICY,
        title=text(page.title),
        css=_data_file("page.css"),
        sentence=sentence,
        notes=_paragraphs(page.notes, "notes"),
        tiles="".join(map(_tile, page.tiles)),
        pictures="".join(map(_picture, page.pictures)),
        table=_table(page),
        remarks=_paragraphs(page.remarks, "remarks"),
        provenance="".join(facts),
    )


def _data_file(name: str) -> str:
    """Return a file that stands beside this module."""
    return Path(__file__).with_name(name).read_text("utf-8")


def _paragraphs(lines: Iterable[str], kind: str) -> str:
    said = " ".join(text(line) for line in lines)
    return f'<p class="{kind}">{said}</p>\n' if said else ""


def _data(value: float | None) -> str:
    return "" if value is None else f' data-value="{value!r}"'


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile"><p class="number"{_data(tile.value)}>{text(tile.number)}</p>'
        f'<p class="what">{text(tile.what)}</p><p class="more">{text(tile.more)}</p></div>\n'
    )


def _picture(picture: Picture) -> str:
    wide = " wide" if picture.wide else ""
    drawing = ""
    if picture.drawn is not None:
        kind = "drawing on-wide" if picture.narrow else "drawing"
        svg = inline_svg(picture.drawn.svg, f"{picture.name}-", picture.label)
        drawing = f'<div class="{kind}">{svg}</div>\n'
    if picture.narrow:
        svg = inline_svg(picture.narrow, f"{picture.name}-narrow-", picture.label)
        drawing += f'<div class="drawing on-narrow">{svg}</div>\n'
    return (
        f'<figure class="card{wide}" id="{text(picture.name)}">\n<h2>{text(picture.heading)}</h2>\n'
        f"{drawing}<figcaption>{text(picture.caption)}</figcaption>\n</figure>\n"
    )


def _table(page: Page) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in page.head)
    rows = "".join(_row(page, *row) for row in page.rows)
    left_out = "".join(f"<li><b>{text(name)}</b> {text(why)}</li>" for name, why in page.left_out)
    return (
        f'<section class="card wide" id="families">\n<h2>All families</h2>\n<table>\n'
        f"<caption>{text(page.table_caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
        + (f'<h3>Left out</h3>\n<ul class="left-out">{left_out}</ul>\n' if left_out else "")
        + "</section>"
    )


def _row(page: Page, family: str, colour: str | None, cells: Sequence[Cell]) -> str:
    swatch = f' style="--swatch: {colour}"' if colour else ""
    values = "".join(
        f'<td data-label="{text(name)}"{_data(cell.value)}{" class=best" if cell.best else ""}>'
        f"{text(cell.shown)}</td>"
        for name, cell in zip(page.head[1:], cells, strict=True)
    )
    name = text(family)
    return f'<tr data-family="{name}"><th scope="row"{swatch}>{name}</th>{values}</tr>\n'
