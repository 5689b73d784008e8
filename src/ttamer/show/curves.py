"""Drawings as SVG text, without a drawing library: curves, and what every drawing is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from ttamer._checks import number, percent, percents
from ttamer.show.graph import Drawing as Drawing

# The size of a plot and its margins, in pixels.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 76, 20, 16, 52
# The height of one line of the legend, in pixels.
LEGEND_ROW = 22
# The width of a letter of 13 pixels, in pixels, for laying out.
LETTER = 7.4
# The height of a line of text, in pixels.
LINE = 15
# Where the largest x is more than this times the smallest, the axis is logarithmic.
MAX_LINEAR_RATIO = 30.0
# Colours and dashes of curves: each colour has a contrast of at least 4.5 to white.
STYLES = (
    ("#1b7f79", ""),
    ("#c05a00", "7 3"),
    ("#3f5fb5", "2 3"),
    ("#a3337a", "9 3 2 3"),
    ("#5b5b5b", "4 4"),
    ("#7a6a00", "1 2"),
    ("#8a3b2a", "12 4"),
    ("#2f6d3a", "5 2 1 2"),
)


def draw_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    marks: Mapping[str, tuple[float, float]] | None = None,
    x_percent: bool = False,
    y_percent: bool = True,
) -> Drawing:
    """Return curves over a common axis, their points joined in order of x, and single marks.

    >>> drawing = draw_curves({"ours": ([1.0, 2.0], [0.3, 0.1])}, "cost", "error")
    >>> drawing.startswith("<svg"), "cost" in drawing
    (True, True)
    """
    single = dict(marks or {})
    xs = [x for points in curves.values() for x in points[0]] + [x for x, _ in single.values()]
    ys = [y for points in curves.values() for y in points[1]] + [y for _, y in single.values()]
    if not xs:
        return Drawing('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>\n')
    across, x_ticks = _axis(
        min(xs), max(xs), LEFT, WIDTH - RIGHT, log=not x_percent and _is_wide(xs)
    )
    room = 0.06 * (max(ys) - min(ys))  # for the names of marks at the top
    up, y_ticks = _axis(min(ys) - room / 3, max(ys) + room, HEIGHT - BOTTOM, TOP, log=False)
    rows = _legend_rows(list(curves))
    height = HEIGHT + LEGEND_ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'style="max-width:{WIDTH}px;width:100%" font-family="sans-serif" font-size="13" '
        f'fill="#1c2733" role="img" aria-label="{escape(y_label)} against {escape(x_label)}">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="white"/>',
    ]
    shown_y = percent if y_percent else number
    texts = percents(y_ticks) if y_percent else [number(tick) for tick in y_ticks]
    for tick, text in zip(y_ticks, texts, strict=True):
        y = up(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e3ded6"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    shown = percent if x_percent else number
    texts = percents(x_ticks) if x_percent else [number(tick) for tick in x_ticks]
    for tick, text in zip(x_ticks, texts, strict=True):
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v5" stroke="#67615a"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    for curve, (name, points) in enumerate(curves.items()):
        colour, dash = STYLES[curve % len(STYLES)]
        ordered = sorted(zip(*points, strict=True))
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in ordered)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}">'
            f"<title>{escape(name)}: {escape(shown(x))}, {shown_y(y)}</title></circle>"
            for x, y in ordered
        ]
    places = _mark_names({name: (across(x), up(y)) for name, (x, y) in single.items()})
    for name, (x, y) in single.items():
        begin, bottom = places[name]
        parts.append(
            f'<path d="M{across(x):.1f} {up(y) - 6:.1f}l6 6l-6 6l-6 -6z" fill="#1c2733"/>'
            f'<text x="{begin:.1f}" y="{bottom:.1f}">{escape(name)}</text>'
        )
    for row, entries in enumerate(rows):
        y = HEIGHT + LEGEND_ROW * (row + 0.4)
        for x, curve, name in entries:
            colour, dash = STYLES[curve % len(STYLES)]
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            parts.append(
                f'<path d="M{x:.0f} {y:.1f}h26" stroke="{colour}" stroke-width="3"{dashes}/>'
                f'<text x="{x + 32:.0f}" y="{y + 4:.1f}">{escape(name)}</text>'
            )
    return Drawing("\n".join([*parts, "</svg>\n"]))


def _mark_names(marks: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return where the name of each mark begins, in pixels: where it covers no other name.

    >>> _mark_names({"one": (100.0, 50.0), "two": (101.0, 50.0)})
    {'one': (110.0, 42.0), 'two': (68.8, 42.0)}
    """
    texts: dict[str, tuple[float, float]] = {}

    def is_free(width: float, begin: float, bottom: float) -> bool:
        return all(
            abs(bottom - line) >= LINE
            or begin >= start + LETTER * len(name)
            or start >= begin + width
            for name, (start, line) in texts.items()
        )

    for name, (x, y) in marks.items():
        width = LETTER * len(name)
        sides = [x + 10, x - 10 - width]
        if x > WIDTH / 2:
            sides.reverse()
        places = [(begin, bottom) for bottom in (y - 8, y + 16) for begin in sides]
        inside = [at for at in places if at[0] >= 0 and at[0] + width <= WIDTH]
        texts[name] = next((at for at in inside if is_free(width, *at)), places[0])
    return texts


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > MAX_LINEAR_RATIO * min(values)


def _axis(
    low: float, high: float, start: float, end: float, *, log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Return the scale of an axis in pixels, and its ticks."""
    if high - low <= 1e-12 * max(abs(high), 1e-300):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    if log:
        bottom, top = math.log10(low), math.log10(high)
        steps = range(math.floor(bottom), math.ceil(top) + 1)
        values = [m * 10.0**k for k in steps for m in ((1,) if top - bottom > 2.5 else (1, 2, 5))]
        ticks = [tick for tick in values if low <= tick <= high]
        return lambda x: start + (math.log10(x) - bottom) / (top - bottom) * (end - start), ticks
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 6)
    first = math.ceil(low / step - 1e-9)
    ticks = [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return lambda x: start + (x - low) / (high - low) * (end - start), ticks


def _legend_rows(names: Sequence[str]) -> list[list[tuple[float, int, str]]]:
    """Return the entries of the legend, each with its place, in rows that fit."""
    rows: list[list[tuple[float, int, str]]] = [[]]
    x = float(LEFT)
    for curve, full in enumerate(names):
        name = full if len(full) <= 40 else full[:39] + "…"
        width = 32 + LETTER * len(name) + 18
        if rows[-1] and x + width > WIDTH - RIGHT:
            rows.append([])
            x = float(LEFT)
        rows[-1].append((x, curve, name))
        x += width
    return rows
