"""Curves, drawn with matplotlib (extra [plot]).

Names come from users: they are drawn as they stand (no mathematics), cut to a length, and without
what cannot be printed.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ttamer._checks import require


@contextmanager
def style() -> Iterator[None]:
    """Draw or save with the settings that all figures share."""
    settings: dict[str, Any] = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ttamer",
        "font.size": 11.0,
        "font.family": "sans-serif",
    }
    with require("matplotlib", "plot").rc_context(settings), warnings.catch_warnings():
        # A name in a script the font lacks: a page shows it, a PNG shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def printable(name: object, length: int = 24) -> str:
    r"""Return a name fit to be drawn: one line, no control characters, not too long.

    >>> printable("a\n b\x00"), printable("x" * 40)
    ('a b�', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    text = "".join(c if c.isprintable() else "�" for c in " ".join(str(name).split()))
    text = text if len(text) <= length else text[: length - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels with _ in front


def as_percent(share: float, _: object = None) -> str:
    """Return a tick in percent.

    >>> as_percent(0.125)
    '12.5%'
    """
    return f"{100 * share:.4g}%"


def draw_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    marks: Mapping[str, tuple[float, float]] | None = None,
    y_percent: bool = True,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw curves, their points joined in order of x, and single marks; return the figure.

    >>> draw_curves({"ours": ([1.0, 2.0], [0.3, 0.1])}, "cost", "error").axes[0].get_xlabel()
    'cost'
    """
    with style():
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots(layout="constrained")
        for name, points in curves.items():
            axes.plot(
                *zip(*sorted(zip(*points, strict=True)), strict=True),
                label=printable(name),
                marker="o",
                markersize=3,
            )
        for (name, at), marker in zip((marks or {}).items(), "D^svP*X<>ph" * 99, strict=False):
            axes.plot(*at, marker, label=printable(name, 34), color="black", markersize=7)
        points_x = [points[0] for points in curves.values()]
        xs = [x for x, _ in (marks or {}).values()] + [x for part in points_x for x in part]
        if xs and 0 < 30 * min(xs) < max(xs):
            axes.set_xscale("log")
        if y_percent:
            axes.yaxis.set_major_formatter(as_percent)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        if axes.lines:
            figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        if path is not None:
            figure.savefig(path)
        plt.close(figure)  # notebooks show what is returned; scripts keep no open figures
    return figure
