"""A forest contracted node by node: the paper's Figures 3 and 6."""

import re
from collections.abc import Sequence

import ttamer as tt
from ttamer.show.graph import Arrow, Box, Drawing, draw_graph
from ttamer.theory import Contraction


def draw_contraction(problem: tt.Problem, steps: list[Contraction]) -> Drawing:
    """Return the steps as SVG, one below the other: the forest that is left after each."""
    standing: dict[int, tuple[str, ...]] = {v: (name,) for name, v in problem.number.items()}
    parents = problem.parents
    depth = {-1: -1}
    for node in problem.order:
        depth[node] = depth[parents[node]] + 1
    drawings = []
    for count, step in enumerate(steps, start=1):
        contracted = problem.number[step.node]
        standing[contracted] = step.members
        for member in step.members[1:]:
            standing.pop(problem.number[member], None)
        boxes: list[Box] = []
        position: dict[int, int] = {}
        for node, members in standing.items():
            lines, colour = [" + ".join(members)], "used"
            if node == contracted:
                colour = "answer"
                lines += [
                    f"{state}: index {index:.4g}, mean cost {law.mean_cost:.4g}"
                    for state, (index, law) in enumerate(zip(step.index, step.laws, strict=True))
                ]
            position[node] = len(boxes)
            boxes.append(Box(tuple(lines), depth[node], colour))
        arrows = [
            Arrow(position[parents[node]], position[node], "")
            for node in standing
            if parents[node] >= 0
        ]
        drawings.append(draw_graph(boxes, arrows, caption=f"step {count}: {step.node}"))
    return stack(drawings)


def stack(drawings: Sequence[Drawing]) -> Drawing:
    """Return drawings one below the other."""
    sizes = [tuple(map(int, re.findall(r'(?:width|height)="(\d+)"', svg)[:2])) for svg in drawings]
    width, height = max(size[0] for size in sizes), sum(size[1] for size in sizes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%;height:auto">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    top = 0
    for drawing, size in zip(drawings, sizes, strict=True):
        parts.append(drawing.replace("<svg ", f'<svg y="{top}" ', 1))
        top += size[1]
    return Drawing("\n".join([*parts, "</svg>\n"]))
