"""Draw the figure of docs/drift.md: the loop, and what it does on a stream with noise.

python experiments/drift/draw_loop.py [--out docs/img/drift.png]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import ttamer as tt
from ttamer.drift.loop import LoopSettings, serving_of
from ttamer.drift.monitor import Bound
from ttamer.drift.replay import replay_stream
from ttamer.reporting import save_figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces
from figure import INK, draw_replay
from retuned_thresholds import RetunedThresholds

GREEN, RED, SAND = "#1b7f79", "#c8553d", "#efe9dd"
# By name: middle (x, y), what is written, colour.
BOXES = {
    "traffic": (7, 82, "requests", SAND),
    "serve": (26, 82, "the policy\nthat serves", GREEN),
    "answers": (44, 82, "answers", SAND),
    "audit": (26, 48, "audit a share:\nask every node", SAND),
    "log": (7, 14, "audit log\n(SQLite)", SAND),
    "watch": (44, 48, "watching:\nthree tests", GREEN),
    "suspected": (62, 48, "suspected: the\nlast node serves", RED),
    "refit": (62, 14, "refitting on rows\nafter the change", SAND),
    "certify": (78, 14, "certifying\non others", SAND),
    "shadow": (93, 14, "shadowing", SAND),
    "swap": (93, 48, "swapped", GREEN),
    "fallback": (78, 48, "fallback: manual\naction required", RED),
}
ARROWS = (
    ("traffic", "serve", ""),
    ("serve", "answers", ""),
    ("serve", "audit", ""),
    ("audit", "log", ""),
    ("audit", "watch", ""),
    ("watch", "suspected", "alarm"),
    ("suspected", "refit", "enough rows"),
    ("refit", "certify", ""),
    ("certify", "shadow", ""),
    ("shadow", "swap", "agrees"),
    ("certify", "fallback", "4 attempts failed"),
)
WIDE, HIGH = 14.0, 21.0


def main() -> None:
    """Replay, draw and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/img/drift.png"))
    parser.add_argument("--stream", default="vgg16-to-noise")
    args = parser.parse_args()
    stream = traces.stream(args.stream)
    settings = LoopSettings(0.05)
    fitted, held = stream.fit.split(0.6, 0)
    serving = serving_of(tt.fit(fitted), held, settings)
    rivals = {"retuned": RetunedThresholds(stream.fit, Bound("error", 0.05), window=400)}
    replayed = replay_stream(serving, stream.rows, settings, rivals=rivals)
    figure = Figure(figsize=(9.2, 8.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 5.4))
    draw_boxes(upper)
    title = "VGG-16 with exits; from row 3,000 on the images are noisy"
    draw_replay(replayed, shift=stream.shift, title=title, onto=lower)
    print(*save_figure(figure, args.out))


def draw_boxes(figure: Any) -> None:
    """Draw the states of the loop and the ways between them."""
    axis = figure.subplots()
    axis.set(xlim=(-1, 101), ylim=(0, 100))
    axis.axis("off")
    for x, y, text, colour in BOXES.values():
        axis.add_patch(
            FancyBboxPatch((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, facecolor=colour,
                           edgecolor="none", boxstyle="round,pad=0,rounding_size=1.5")
        )  # fmt: skip
        ink = INK if colour == SAND else "white"
        axis.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)
    for begin, end, label in ARROWS:
        (x, y), (u, v) = (BOXES[name][:2] for name in (begin, end))
        along = abs(u - x) >= abs(v - y) or (begin, end) == ("audit", "log")
        side = 1 if u > x else -1
        if along:
            ends = (x + side * WIDE / 2, y), (u - side * WIDE / 2, v)
            if begin == "audit" and end == "log":
                ends = (x - WIDE / 2, y - 4), (u, v + HIGH / 2)
        else:
            up = 1 if v > y else -1
            ends = (x, y + up * HIGH / 2), (u, v - up * HIGH / 2)
        arrow(axis, *ends)
        middle = ((ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2)
        if label:
            place = (middle[0], middle[1] + 3) if along else (middle[0] + 0.8, middle[1])
            axis.text(*place, label, fontsize=7, color=INK, ha="center" if along else "left",
                      va="bottom" if along else "center")  # fmt: skip
    # Back to the policy that serves.
    axis.plot([93, 93, 62], [48 + HIGH / 2, 97, 97], color=INK, lw=1)
    axis.plot([62, 26], [97, 97], color=INK, lw=1)
    arrow(axis, (26, 97), (26, 82 + HIGH / 2))
    axis.text(60, 95, "the new policy serves, and is monitored", fontsize=7, color=INK, va="top")
    axis.plot([62, 62, 31], [48 + HIGH / 2, 65, 65], color=INK, lw=1)
    arrow(axis, (31, 65), (31, 82 - HIGH / 2))
    axis.text(60, 66, "at once", fontsize=7, color=INK, va="bottom", ha="right")


def arrow(axis: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    axis.add_patch(
        FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=9, color=INK, lw=1,
                        shrinkA=0, shrinkB=0)
    )  # fmt: skip


if __name__ == "__main__":
    main()
