"""Drawings of policies and sessions as SVG text, without any drawing library.

A policy is drawn as its graph: one box per node, from left to right by distance from the start,
with what the policy does after each of its states; edges with their costs, those that the policy
takes in full colour. A session is drawn as its path: the nodes asked, the answer, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ttamer._display.drawing import Drawing
from ttamer.policy.expected_walk import START, STOP
from ttamer.policy.session import Session
from ttamer.problem.problem import Edge

if TYPE_CHECKING:
    from ttamer.policy.base import Policy


# The most states of a node that its box lists.
MAX_STATES_DRAWN = 8
# The most distinct costs that an edge lists.
MAX_COSTS_DRAWN = 3
# The width of a character, the height of a line and the margin in a box, in pixels.
CHARACTER, LINE_HEIGHT, PADDING = 6.6, 15, 8
# The distances between columns and rows of boxes, and around the drawing, in pixels.
COLUMN_GAP, ROW_GAP, MARGIN = 90, 24, 20
# Colours that also differ in lightness, so that the drawing reads in grey.
COLOURS = {"ink": "#1c2733", "used": "#1f5fa8", "unused": "#b4bac2", "answer": "#d9730d"}


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


def draw_policy(policy: Policy) -> Drawing:
    """Return the graph of a solved policy as SVG."""
    problem = policy.problem
    columns = {START: 0}
    for node in problem.order:
        sources = [problem.sources[edge] for edge in problem.incoming[node]]
        columns[node] = 1 + max(columns[source] for each in sources for source in each)
    first = {int(target) for target in np.unique(policy.choice(None)) if target != STOP}
    title = f"start: value {policy.value:.4g}"
    boxes = [Box((title, f"tradeoff {policy.tradeoff:g}"), 0)]
    asked = list(policy.asked.values())
    used = {(START, target) for target in first}
    for number, name in enumerate(problem.names):
        lines, targets = _node_lines(policy, number)
        used |= {(number, target) for target in targets}
        colour = "used" if asked[number] > 0 else "unused"
        head = (name, f"asked {asked[number]:.1%}")
        boxes.append(Box((*head, *lines), columns[number], colour))
    arrows = []
    for number, edge in enumerate(problem.edges):
        target = problem.ends[number][1]
        for source in problem.sources[number]:
            taken = (source, target) in used and asked[target] > 0
            colour = "used" if taken else "unused"
            arrows.append(Arrow(source + 1, target + 1, _cost_label(edge), colour))
    return draw_graph(boxes, arrows)


def draw_session(session: Session) -> Drawing:
    """Return the path of one input as SVG."""
    why = session.explain()
    boxes, arrows = [], []
    for step, name in enumerate(session.asked):
        lines = [name]
        if name in why.beliefs:
            value = why.beliefs[name]
            lines.append(
                f"expected loss {value:.4g}" if why.has_losses else f"wrong with chance {value:.2%}"
            )
        is_answer = name == session.answer
        if is_answer:
            lines.append("the answer" if session.next is None else "the best answer so far")
        boxes.append(Box(tuple(lines), step, "answer" if is_answer else "used"))
    if session.next is not None:
        boxes.append(Box((session.next, f"next, costs {session.price:.4g}"), len(boxes), "unused"))
    for step in range(1, len(boxes)):
        arrows.append(Arrow(step - 1, step, ""))  # noqa: PERF401 - one after the other
    return draw_graph(boxes, arrows, caption=f"cost {session.cost:.4g}; {why.why}")


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
    left, at = {}, float(MARGIN)
    for column in columns:
        left[column] = at
        at += widths[column] + COLUMN_GAP
    below = dict.fromkeys(columns, float(MARGIN))
    corners = []
    for box, (_, height) in zip(boxes, sizes, strict=True):
        corners.append((left[box.column], below[box.column]))
        below[box.column] += height + ROW_GAP
    width = max(at - COLUMN_GAP + MARGIN, 2 * MARGIN + CHARACTER * len(caption))
    total = max(below.values(), default=0.0) + (LINE_HEIGHT + ROW_GAP if caption else 0)
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
    for arrow in sorted(arrows, key=lambda each: each.colour == "used"):
        x1 = corners[arrow.source][0] + sizes[arrow.source][0]
        y1 = corners[arrow.source][1] + sizes[arrow.source][1] / 2
        x2, y2 = corners[arrow.target][0], corners[arrow.target][1] + sizes[arrow.target][1] / 2
        colour = COLOURS[arrow.colour]
        bend = (x2 - x1) / 2
        parts.append(
            f'<path d="M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} '
            f'{x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'marker-end="url(#{arrow.colour})"/>'
        )
        if arrow.label:
            parts.append(
                f'<text x="{x2 - 10:.1f}" y="{y2 - 5:.1f}" text-anchor="end" fill="{colour}">'
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


def _node_lines(policy: Policy, number: int) -> tuple[list[str], set[int]]:
    """Return what a policy does after each state of a node, and the nodes it may ask next."""
    problem, name = policy.problem, policy.problem.names[number]
    lines = []
    if policy.recall and problem.is_forest and problem.moves == "precedence":
        indices = policy.index(name).tolist()
        shown = ", ".join(f"{index:.4g}" for index in indices[:MAX_STATES_DRAWN])
        lines.append(f"index {shown}" + (", ..." if len(indices) > MAX_STATES_DRAWN else ""))
    choice, losses = policy.choice(name), problem.nodes[number].losses.tolist()
    following: set[int] = set()
    for state, loss in enumerate(losses):
        targets = sorted({target for target in choice[state].tolist() if target != STOP})
        following |= set(targets)
        if state > MAX_STATES_DRAWN:
            continue
        if state == MAX_STATES_DRAWN:
            lines.append(f"... {len(losses)} states")
            continue
        onward = " or ".join(problem.names[target] for target in targets)
        rule = f"ask {onward}" if onward else "stop"
        if onward and policy.recall:
            bound = policy.threshold(name)[state]
            rule = f"stop at {bound:.4g}, else {rule}" if bound > -np.inf else rule
        lines.append(f"{state}: loss {loss:.4g}, {rule}")
    return lines, following


def _cost_label(edge: Edge) -> str:
    costs = np.unique(edge.cost).tolist()
    if len(costs) > MAX_COSTS_DRAWN:
        return f"{costs[0]:.4g} to {costs[-1]:.4g}"
    return ", ".join(f"{cost:.4g}" for cost in costs)
