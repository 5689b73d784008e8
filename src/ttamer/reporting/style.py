"""What all figures and pages of a report share: colours, axes, rendering, numbers in words.

Figures are made without pyplot, so that nothing global is touched. Names come from users: they are
drawn as they stand (no mathematics), cut to a length, and without what cannot be printed.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._lazy import is_installed
from ttamer._numbers import percent
from ttamer.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The colour of stopping, and of ttamer's own family.
STOP_COLOUR = "#1b7f79"
# The colour of asking another node, and of the paper's family.
GO_COLOUR = "#f2a541"
# The colour of what recall makes worse.
HURT_COLOUR = "#c8553d"
# The colour of text; this one and those below follow the page's light or dark theme.
INK = "#2b2b2b"
# The colour of captions and axes.
MUTED = "#67615a"
# The colour of shares that carry no message.
FAINT = "#c9c3ba"
# The colour of bounds in the background.
BACKGROUND = "#8d857a"
# The colour of grid lines.
RULE = "#e3ded6"
# The colour of what cannot happen.
BLANK_COLOUR = "#f1efec"
# The colour behind a figure.
PAPER = "#ffffff"
# The longest name that is drawn whole.
_MAX_LETTERS = 24


def less(share: float) -> str:
    """Return a saving in words.

    >>> less(0.421), less(-0.03), less(0.001), less(0.9871)
    ('42% less', '3% more', 'the same', '98.7% less')
    """
    if abs(share) < 0.005:
        return "the same"
    size = f"{abs(share):.0%}" if abs(share) < 0.1 else percent(abs(share))
    return f"{size} {'less' if share > 0 else 'more'}"


def points(share: float) -> str:
    """Return a difference of error rates in percentage points.

    >>> points(0.005), points(0.01), points(0.0123)
    ('0.5 points', '1 point', '1.23 points')
    """
    size = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{size} {'point' if size == '1' else 'points'}"


@dataclass(frozen=True)
class Drawn:
    """A figure, rendered as SVG."""

    svg: bytes
    figure: Figure

    def png(self) -> bytes:
        """Render it as PNG."""
        png = io.BytesIO()
        with style():
            self.figure.savefig(png, format="png", dpi=160)
        return png.getvalue()


def drawn(figure: Figure) -> Drawn:
    """Render a figure as SVG."""
    return Drawn(svg_of(figure), figure)


def svg_of(figure: Figure) -> bytes:
    """Render a figure as SVG, its text as text."""
    svg = io.BytesIO()
    with style():
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.set_layout_engine("none")  # laid out once: rendering again keeps the places
    return svg.getvalue()


def printable(name: object, most: int = _MAX_LETTERS) -> str:
    r"""Return a name fit to be drawn: one line, no control characters, not too long.

    >>> printable("a\n b\x00"), printable("x" * 40)
    ('a b�', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    text = "".join(c if c.isprintable() else "�" for c in " ".join(str(name).split()))
    text = text if len(text) <= most else text[: most - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels with _ in front


def require_matplotlib() -> None:
    """Refuse to draw where matplotlib is not installed: before the work, not after it."""
    if not is_installed("matplotlib"):
        raise MissingExtra("matplotlib", "plot")


@contextmanager
def style() -> Iterator[None]:
    """Draw or save with the settings that all figures share."""
    require_matplotlib()
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ttamer",
        "font.size": 10.0,
        "font.family": "sans-serif",
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A name in a script the font lacks: the page shows it, the PNG shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def plain_axes(axes: Axes, *, grid: Any = None) -> None:
    """Leave of the axes only what is read: ``grid`` is "x", "y", "both" or nothing."""
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=9, colors=MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=RULE, lw=0.8)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as PNG and as SVG beside it.

    Args:
        figure: A matplotlib figure, such as :func:`~ttamer.reporting.draw_frontier` returns.
        path: Where to write; its suffix is replaced. Missing folders are made.

    Returns:
        The two paths, the PNG first.

    Raises:
        OSError: If a file cannot be written.

    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save_figure(Figure(), Path(folder) / "empty.png")]
    ['empty.png', 'empty.svg']
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    paths = [target.with_suffix(".png"), target.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, dpi=160, metadata={"Date": None} if each.suffix == ".svg" else None)
    return paths
