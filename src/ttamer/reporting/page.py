"""The page of a report: text in, one self-contained HTML file out.

Nothing on it is fetched and nothing runs: there is no script, and the page's own policy forbids
both. Every string from outside goes through :func:`text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ttamer.reporting.frontier_figure import FAINT, MUTED, PAPER, RULE
from ttamer.reporting.plot import BLANK_COLOUR, INK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ttamer.reporting.frontier_figure import Drawn

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
"""Colours of drawings that follow the page's light or dark theme."""


@dataclass(frozen=True)
class Tile:
    """A number that matters."""

    number: str
    what: str
    more: str
    value: float | None
    """The number in full."""


@dataclass(frozen=True)
class Picture:
    """A drawing, or a word where there is nothing to draw."""

    name: str
    heading: str
    caption: str
    label: str = ""
    """For those who cannot see it."""
    drawn: Drawn | None = None
    narrow: bytes = b""
    """The same for narrow screens, where it must be drawn anew to be read."""
    wide: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    shown: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Page:
    """All that a report says."""

    title: str
    sentence: str
    strong: str
    """The part of the sentence to be seen first."""
    notes: Sequence[str]
    tiles: Sequence[Tile]
    pictures: Sequence[Picture]
    table_caption: str
    head: Sequence[str]
    rows: Sequence[tuple[str, str | None, Sequence[Cell]]]
    """Per family its name, its colour, its cells."""
    left_out: Sequence[tuple[str, str]]
    provenance: Sequence[tuple[str, str]]
    remarks: Sequence[str] = field(default_factory=tuple)


def text(value: object) -> str:
    """Return text safe to stand in HTML, between tags and in attributes.

    >>> text('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    one_line = " ".join(str(value).split())
    return escape("".join(c if c.isprintable() else "�" for c in one_line), quote=True)


def inline_svg(svg: bytes, prefix: str, label: str) -> str:
    """Return a drawing of ours to stand inside HTML: it scales, and its ids are its own."""
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
    """One attribute as the page needs it: own ids, the theme's colours, two decimals."""
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
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(page.title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header>
<p class="brand"><b>ttamer</b> {text(page.title)}</p>
<h1>{sentence}</h1>
{_paragraphs(page.notes, "notes")}</header>
<section class="tiles" aria-label="Three numbers">
{"".join(map(_tile, page.tiles))}</section>
<div class="pictures">
{"".join(map(_picture, page.pictures))}</div>
{_table(page)}
<footer>
{_paragraphs(page.remarks, "remarks")}<dl>
{"".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in page.provenance)}
</dl>
</footer>
</main>
</body>
</html>
"""


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


CSS = """
:root { --bg: #f7f4ef; --card: #ffffff; --ink: #2b2b2b; --muted: #77716a; --rule: #e3ded6;
  --faint: #c9c3ba; --blank: #f1efec; --accent: #1b7f79; }
@media (prefers-color-scheme: dark) { :root { --bg: #161513; --card: #201f1c; --ink: #ece8e1;
  --muted: #a59e94; --rule: #3b3834; --faint: #5f5a53; --blank: #2d2b28; --accent: #4bb3ab; } }
@media print { :root { --bg: #ffffff; --card: #ffffff; --ink: #2b2b2b; --muted: #77716a;
  --rule: #e3ded6; --faint: #c9c3ba; --blank: #f1efec; --accent: #1b7f79; } }
@media print { html { font-size: 11px; }
  main { max-width: none !important; padding: 0 !important; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; overflow-wrap: anywhere; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.5rem 3rem; }
.brand { color: var(--muted); margin: 0 0 1.2rem; }
.brand b { color: var(--accent); margin-right: .5rem; letter-spacing: .02em; }
h1 { font-size: clamp(1.5rem, 4vw, 2.5rem); line-height: 1.2; font-weight: 650; margin: 0;
  letter-spacing: -.015em; max-width: 30em; text-wrap: balance; }
h1 em { font-style: normal; color: var(--accent); }
.notes { color: var(--muted); margin: .9rem 0 0; }
.tiles { display: grid; grid-template-columns: repeat(3, 1fr); gap: 1rem; margin: 2.2rem 0 1rem; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 14px; }
.tile { padding: 1.1rem 1.3rem 1.2rem; }
.tile p { margin: 0; }
.tile .number { font-size: clamp(2rem, 5vw, 3rem); font-weight: 680; line-height: 1.15;
  color: var(--accent); letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile .what { font-weight: 550; }
.tile .more { color: var(--muted); font-size: .88rem; }
.pictures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.card { margin: 0; padding: 1.2rem 1.3rem 1.1rem; min-width: 0; break-inside: avoid; }
.card.wide { grid-column: 1 / -1; }
section.card { margin-top: 1rem; }
h2 { font-size: 1.12rem; margin: 0 0 .8rem; font-weight: 650; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit !important; }
.on-narrow { display: none; }
figcaption, caption, .left-out, footer { color: var(--muted); font-size: .88rem; }
figcaption { margin-top: .8rem; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .7rem; }
th, td { text-align: right; padding: .38rem .5rem; border-bottom: 1px solid var(--rule); }
thead th { color: var(--muted); font-weight: 500; font-size: .85rem; }
th:first-child { text-align: left; font-weight: 550; }
tbody th::before { content: ""; display: inline-block; width: .7rem; height: .7rem;
  border-radius: 50%; margin-right: .6rem; background: var(--swatch, var(--rule)); }
.best { font-weight: 700; color: var(--accent); }
.left-out { margin: 0; padding-left: 1.1rem; }
footer { margin-top: 1.6rem; }
footer dl { display: flex; flex-wrap: wrap; gap: .3rem 1.8rem; margin: 0; }
footer div { display: flex; gap: .5rem; }
footer dt { font-weight: 600; white-space: nowrap; }
footer dd { margin: 0; }
@media (max-width: 46rem) {
  main { padding: 1.4rem .9rem 2rem; }
  .tiles, .pictures { grid-template-columns: minmax(0, 1fr); }
  .tiles { gap: .7rem; margin-top: 1.5rem; }
  .card { padding: 1rem .8rem; }
  .on-wide { display: none; }
  .on-narrow { display: block; }
  thead { display: none; }
  table, tbody, caption { display: block; }
  tr { display: grid; grid-template-columns: repeat(6, 1fr); gap: .1rem .3rem; padding: .55rem 0;
    border-bottom: 1px solid var(--rule); }
  th, td { border: 0; padding: 0; }
  tbody th { grid-column: 1 / -1; }
  td { text-align: left; font-size: .85rem; }
  td::before { content: attr(data-label); display: block; color: var(--muted); font-size: .75rem;
    font-weight: 400; }
}
"""
