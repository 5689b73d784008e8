"""The page of a report: one self-contained HTML file from ``page.html``, ``.css`` and ``.js``.

The page fetches nothing. Its content security policy allows exactly one script, its own, by its
hash; without it the page shows the same numbers, and points of the frontier link to rows of a
table. Every string from outside goes through :func:`text`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from xml.etree import ElementTree as ET

from ttamer.reporting.style import (
    BACKGROUND,
    BLANK_COLOUR,
    FAINT,
    INK,
    MUTED,
    PAPER,
    RULE,
    Drawn,
)

# The content security policy, with the hash of the one script that may run.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "script-src 'sha256-{hash}'"
)
# The colours of drawings that follow the page's light or dark theme.
_THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    FAINT: "var(--faint)",
    BACKGROUND: "var(--background)",
    BLANK_COLOUR: "var(--blank)",
    PAPER: "var(--card)",
}


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
class Pick:
    """One policy that the reader can pick, in the figure or in the table of policies."""

    name: str
    """Its id in the drawing, where it is a point."""
    cells: Sequence[str]
    """What the table of policies shows."""
    tip: str
    """What hovering over the point shows."""
    deploy: Sequence[tuple[str, str]]
    """How to deploy it: the place, and what to write there."""
    recommended: bool = False


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
    summaries: Sequence[tuple[str, str]]
    """What each family does."""
    provenance: Sequence[tuple[str, str]]
    pick_caption: str = ""
    pick_head: Sequence[str] = ()
    picks: Sequence[Pick] = ()
    """The policies of the reported family that are on its frontier, the cheapest first."""
    remarks: Sequence[str] = field(default_factory=tuple)


def text(value: object) -> str:
    """Return text that is safe in HTML, between tags and in attributes.

    >>> text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    one_line = " ".join(str(value).split())
    return escape("".join(c if c.isprintable() else "�" for c in one_line), quote=True)


def inline_svg(svg: bytes, prefix: str, label: str, picks: Sequence[Pick]) -> str:
    """Return one of our drawings for use inside HTML: it scales, and its ids are unique.

    Points that can be picked become links to their row in the table of policies.
    """
    root = ET.fromstring(svg)  # noqa: S314 - we have just drawn it ourselves
    tips = {pick.name: pick.tip for pick in picks}
    for parent in list(root.iter()):
        for place, child in enumerate(list(parent)):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
            elif (name := child.get("id", "")) in tips:
                link = ET.Element("a", {"href": f"#policy-{name}", "class": "point"})
                ET.SubElement(link, "title").text = tips[name]
                link.append(child)
                parent[place] = link
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
    if name.endswith("href") and value.startswith("#") and not value.startswith("#policy-"):
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
    script = _data_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_data_file("page.html")).substitute(
        policy=_POLICY.format(hash=digest),
        script=script,
        title=text(page.title),
        css=_data_file("page.css"),
        sentence=sentence,
        notes=_paragraphs(page.notes, "notes"),
        tiles="".join(map(_tile, page.tiles)),
        frontier="".join(_picture(each, page.picks) for each in page.pictures[:1]),
        pictures="".join(map(_picture, page.pictures[1:])),
        policies=_policies(page),
        table=_table(page),
        remarks=_paragraphs(page.remarks, "remarks"),
        provenance="".join(facts),
    )


def _data_file(name: str) -> str:
    """Return a file that stands beside this module."""
    return Path(__file__).with_name(name).read_text("utf-8")


def _paragraphs(lines: Iterable[str], kind: str) -> str:
    joined = " ".join(text(line) for line in lines)
    return f'<p class="{kind}">{joined}</p>\n' if joined else ""


def _data(value: float | None) -> str:
    return "" if value is None else f' data-value="{value!r}"'


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile"><p class="number"{_data(tile.value)}>{text(tile.number)}</p>'
        f'<p class="what">{text(tile.what)}</p><p class="more">{text(tile.more)}</p></div>\n'
    )


def _picture(picture: Picture, picks: Sequence[Pick] = ()) -> str:
    wide = " wide" if picture.wide else ""
    drawing = ""
    if picture.drawn is not None:
        kind = "drawing on-wide" if picture.narrow else "drawing"
        svg = inline_svg(picture.drawn.svg, f"{picture.name}-", picture.label, picks)
        drawing = f'<div class="{kind}">{svg}</div>\n'
    if picture.narrow:
        svg = inline_svg(picture.narrow, f"{picture.name}-narrow-", picture.label, picks)
        drawing += f'<div class="drawing on-narrow">{svg}</div>\n'
    return (
        f'<figure class="card{wide}" id="{text(picture.name)}">\n<h2>{text(picture.heading)}</h2>\n'
        f"{drawing}<figcaption>{text(picture.caption)}</figcaption>\n</figure>\n"
    )


def _policies(page: Page) -> str:
    """Return the table of policies that can be picked, and the place that shows the one picked."""
    if not page.picks:
        return ""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in page.pick_head)
    rows = "".join(_pick(page, pick) for pick in page.picks)
    return (
        '<section class="card wide" id="policies">\n<h2>Pick a policy</h2>\n'
        '<div id="picked" aria-live="polite"></div>\n'
        f"<table>\n<caption>{text(page.pick_caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</section>"
    )


def _pick(page: Page, pick: Pick) -> str:
    first, *rest = pick.cells
    cells = "".join(
        f'<td data-label="{text(name)}">{text(cell)}</td>'
        for name, cell in zip(page.pick_head[1:-1], rest, strict=True)
    )
    how = "".join(
        f"<dt>{text(place)}</dt><dd><code>{text(line)}</code></dd>" for place, line in pick.deploy
    )
    marked = ' class="recommended"' if pick.recommended else ""
    return (
        f'<tr id="policy-{text(pick.name)}" data-tip="{text(pick.tip)}"{marked}>'
        f'<th scope="row">{text(first)}</th>{cells}'
        f'<td class="deploy"><details><summary>deploy</summary><dl>{how}</dl></details></td></tr>\n'
    )


def _table(page: Page) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in page.head)
    rows = "".join(_row(page, *row) for row in page.rows)
    left_out, summaries = (
        "".join(f"<li><b>{text(name)}</b> {text(line)}</li>" for name, line in lines)
        for lines in (page.left_out, page.summaries)
    )
    return (
        f'<section class="card wide" id="families">\n<h2>All families</h2>\n<table>\n'
        f"<caption>{text(page.table_caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
        + f"<details><summary>What each rule does</summary>\n"
        f'<ul class="left-out">{summaries}</ul></details>\n'
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
