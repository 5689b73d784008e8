"""Objects as HTML for notebooks.

Colours are those of the surrounding page, so that light and dark themes work alike. Every text is
escaped: names of nodes and classes come from users.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ttamer._display.drawing import Drawing

# The style of a cell: lines that are visible on light and on dark pages.
CELL = "padding:2px 12px 2px 0;border:0;border-bottom:1px solid rgba(128,128,128,.35)"


def card(
    title: str,
    *,
    notes: Sequence[str] = (),
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    drawing: Drawing | None = None,
) -> str:
    r"""Return a title, sentences, a table and a drawing as HTML.

    >>> card("Trace", notes=["2 rows"], head=["node", "right"], rows=[["<a>", "90%"]])[-43:]
    'right">90%</td></tr></tbody></table></div>\n'
    """
    parts = [f'<div style="color:inherit;font-size:14px"><strong>{escape(title)}</strong>']
    parts += [f"<div>{escape(note)}</div>" for note in notes]
    if rows:
        parts.append('<table style="border-collapse:collapse;margin:6px 0;color:inherit">')
        if head:
            cells = "".join(_cell("th", text, place) for place, text in enumerate(head))
            parts.append(f"<thead><tr>{cells}</tr></thead>")
        body = "".join(
            f"<tr>{''.join(_cell('td', text, place) for place, text in enumerate(row))}</tr>"
            for row in rows
        )
        parts.append(f"<tbody>{body}</tbody></table>")
    if drawing is not None:
        parts.append(drawing)
    return "".join(parts) + "</div>\n"


def _cell(kind: str, text: str, place: int) -> str:
    """Return a cell: the first column to the left, the others to the right."""
    side = "left" if place == 0 else "right"
    return f'<{kind} style="{CELL};text-align:{side}">{escape(text)}</{kind}>'
