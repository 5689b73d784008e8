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

    # Its text; the first line is the title.
    lines: tuple[str, ...]
    # From left to right.
    column: int
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
    widths = [2 * PADDING + CHARACTER * max(map(len, box.lines)) for box in boxes]
    heights = [2.0 * PADDING + LINE_HEIGHT * len(box.lines) for box in boxes]
    left, x = {}, float(MARGIN)
    for column in sorted({box.column for box in boxes}):
        left[column] = x
        in_column = [w for box, w in zip(boxes, widths, strict=True) if box.column == column]
        x += max(in_column) + COLUMN_GAP
    below, tops = dict.fromkeys(left, float(MARGIN)), []
    for box, height in zip(boxes, heights, strict=True):
        tops.append(below[box.column])
        below[box.column] += height + ROW_GAP
    bottom = max(below.values(), default=0.0) - ROW_GAP
    spans = [boxes[arrow.target].column - boxes[arrow.source].column for arrow in arrows]
    width = max(x - COLUMN_GAP + MARGIN, 2 * MARGIN + CHARACTER * len(caption))
    total = bottom + ROW_GAP + BOW * (max(spans, default=1) - 1)
    total += LINE_HEIGHT + ROW_GAP if caption else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{total:.0f}" '
        f'viewBox="0 0 {width:.0f} {total:.0f}" font-family="monospace" '
        f'font-size="11" style="max-width:100%;height:auto">',
        f'<rect width="{width:.0f}" height="{total:.0f}" fill="white"/>',
    ]
    parts += [
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{value}"/></marker>'
        for name, value in COLOURS.items()
    ]
    for arrow, span in sorted(zip(arrows, spans, strict=True), key=lambda x: x[0].colour == "used"):
        source, target, colour = arrow.source, arrow.target, COLOURS[arrow.colour]
        x1, y1 = left[boxes[source].column] + widths[source], tops[source] + heights[source] / 2
        x2, y2 = left[boxes[target].column], tops[target] + heights[target] / 2
        bend, low1, low2, drop = (x2 - x1) / 2, y1, y2, -5
        if span > 1:  # below the boxes between the two
            x1, y1, x2, y2 = x1 - 30, tops[source] + heights[source], x2 + 30, tops[target]
            y2 += heights[target]
            bend, low1, drop = (x2 - x1) / 6, bottom + BOW * (span - 1) * 1.3, 16
            low2 = low1
        parts.append(
            f'<path d="M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {low1:.1f} {x2 - bend:.1f} {low2:.1f} '
            f'{x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'marker-end="url(#{arrow.colour})"/>'
        )
        if arrow.label:
            end = f'text-anchor="end" fill="{colour}"'
            parts.append(_text(x2 - 10, y2 + drop, arrow.label, end))
    ink = f'fill="{COLOURS["ink"]}"'
    for box, y, w, h in zip(boxes, tops, widths, heights, strict=True):
        x = left[box.column]
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="5" fill="white" '
            f'stroke="{COLOURS[box.colour]}" stroke-width="1.5"/>'
        )
        for row, line in enumerate(box.lines):
            style = f'{ink} xml:space="preserve"' + ' font-weight="bold"' * (row == 0)
            baseline = y + PADDING + LINE_HEIGHT * (row + 0.75)
            parts.append(_text(x + PADDING, baseline, line, style))
    if caption:
        parts.append(_text(MARGIN, total - MARGIN, caption, ink))
    return Drawing("\n".join([*parts, "</svg>\n"]))


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
