"""Boxes and arrows as SVG text, without a drawing library: policies, sessions, topologies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

# The width of a character, the height of a line and the margin in a box, in pixels.
CHARACTER, LINE_HEIGHT, PADDING = 6.6, 15, 8
# The distances between columns and rows of boxes, and around the drawing, in pixels.
COLUMN_GAP, ROW_GAP, MARGIN = 90, 24, 20
# How far an arrow over a column hangs below the boxes, in pixels.
BOW = 26
# Colours that also differ in lightness, so that the drawing reads in grey.
COLOURS = {"ink": "#1c2733", "used": "#1f5fa8", "unused": "#b4bac2", "answer": "#d9730d"}


class Drawing(str):
    """The text of an SVG file, which notebooks show as a picture.

    >>> Drawing("<svg/>")._repr_html_()
    '<svg/>'
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)

    def written(self, path: str | os.PathLike[str] | None) -> Drawing:
        """Write the text to a file, if one is given; return the drawing.

        Args:
            path: The file, or nothing.

        Returns:
            The drawing itself.
        """
        if path is not None:
            Path(path).write_text(self, "utf-8")
        return self


@dataclass(frozen=True)
class Box:
    """A box of the drawing."""

    lines: tuple[str, ...]
    """Its text; the first line is the title."""
    column: int
    """From left to right."""
    colour: str = "used"


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their numbers."""

    source: int
    target: int
    label: str
    colour: str = "used"


def draw_path(steps: Sequence[tuple[Sequence[str], str]], caption: str) -> Drawing:
    """Return the path of one input: the lines and the colour of each box, from left to right."""
    boxes = [Box(tuple(lines), step, colour) for step, (lines, colour) in enumerate(steps)]
    arrows = [Arrow(step - 1, step, "") for step in range(1, len(boxes))]
    return draw_graph(boxes, arrows, caption=caption)


def draw_graph(boxes: Sequence[Box], arrows: Sequence[Arrow], *, caption: str = "") -> Drawing:
    """Return boxes in columns, and arrows between them, as SVG."""
    sizes = [
        (
            2 * PADDING + CHARACTER * max(map(len, box.lines)),
            2.0 * PADDING + LINE_HEIGHT * len(box.lines),
        )
        for box in boxes
    ]
    columns = sorted({box.column for box in boxes})
    widths = {
        column: max(size[0] for box, size in zip(boxes, sizes, strict=True) if box.column == column)
        for column in columns
    }
    start, at = {}, float(MARGIN)
    for column in columns:
        start[column] = at
        at += widths[column] + COLUMN_GAP
    below = dict.fromkeys(columns, float(MARGIN))
    corners = []
    for box, (_, height) in zip(boxes, sizes, strict=True):
        corners.append((start[box.column], below[box.column]))
        below[box.column] += height + ROW_GAP
    width = max(at - COLUMN_GAP + MARGIN, 2 * MARGIN + CHARACTER * len(caption))
    bottom = max(below.values(), default=0.0) - ROW_GAP
    span = {(a.source, a.target): boxes[a.target].column - boxes[a.source].column for a in arrows}
    total = bottom + ROW_GAP + BOW * (max(span.values(), default=1) - 1)
    total += LINE_HEIGHT + ROW_GAP if caption else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{total:.0f}" '
        f'viewBox="0 0 {width:.0f} {total:.0f}" font-family="monospace" '
        f'font-size="11" style="max-width:100%;height:auto">',
        f'<rect width="{width:.0f}" height="{total:.0f}" fill="white"/>',
    ]
    for colour, value in COLOURS.items():
        parts.append(
            f'<marker id="{colour}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{value}"/></marker>'
        )
    for arrow in sorted(arrows, key=lambda arrow: arrow.colour == "used"):
        x1 = corners[arrow.source][0] + sizes[arrow.source][0]
        y1 = corners[arrow.source][1] + sizes[arrow.source][1] / 2
        x2, y2 = corners[arrow.target][0], corners[arrow.target][1] + sizes[arrow.target][1] / 2
        colour = COLOURS[arrow.colour]
        bend, low1, low2 = (x2 - x1) / 2, y1, y2
        if span[arrow.source, arrow.target] > 1:  # below the boxes between the two
            x1, y1 = x1 - 30, corners[arrow.source][1] + sizes[arrow.source][1]
            x2, y2 = x2 + 30, corners[arrow.target][1] + sizes[arrow.target][1]
            bend, low1 = (x2 - x1) / 6, bottom + BOW * (span[arrow.source, arrow.target] - 1) * 1.3
            low2 = low1
        parts.append(
            f'<path d="M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {low1:.1f} {x2 - bend:.1f} {low2:.1f} '
            f'{x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'marker-end="url(#{arrow.colour})"/>'
        )
        drop = 16 if span[arrow.source, arrow.target] > 1 else -5
        if arrow.label:
            parts.append(
                f'<text x="{x2 - 10:.1f}" y="{y2 + drop:.1f}" text-anchor="end" fill="{colour}">'
                f"{escape(arrow.label)}</text>"
            )
    for box, (x, y), (w, h) in zip(boxes, corners, sizes, strict=True):
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="5" fill="white" '
            f'stroke="{COLOURS[box.colour]}" stroke-width="1.5"/>'
        )
        for row, line in enumerate(box.lines):
            weight = ' font-weight="bold"' if row == 0 else ""
            parts.append(
                f'<text x="{x + PADDING:.1f}" y="{y + PADDING + LINE_HEIGHT * (row + 0.75):.1f}" '
                f'fill="{COLOURS["ink"]}" xml:space="preserve"{weight}>{escape(line)}</text>'
            )
    if caption:
        parts.append(
            f'<text x="{MARGIN}" y="{total - MARGIN:.1f}" fill="{COLOURS["ink"]}">'
            f"{escape(caption)}</text>"
        )
    return Drawing("\n".join([*parts, "</svg>\n"]))
