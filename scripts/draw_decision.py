"""Draw one decision as an animated SVG: ``python scripts/draw_decision.py docs/img/decision.svg``.

A real input of the trace ``langid`` goes through a policy fitted to it: which detectors are asked,
what each answers, how the chance of being wrong changes, and which answer is returned. Without
animation the drawing shows the whole decision.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import numpy as np

import ttamer as tt

ROW = 34
"""The row of the test part that is drawn: two detectors differ, and a third one settles it."""
FIT_ROWS = 6000
"""The rows that the policy is fitted to."""
MISTAKE = 3000.0
"""What a wrong answer costs, in microseconds of computing."""
SECONDS = 12.0
"""The length of the animation, which then starts again."""
WIDTH, HEIGHT = 760, 306
LEFT, COLUMN, BOX = 20, 178, 158
LANGUAGES = {"no": "Norwegian", "en": "English"}


def main() -> None:
    """Write the drawing."""
    steps, answer, cost, alone = decision()
    Path(sys.argv[1]).write_text(drawing(steps, answer, cost, alone), "utf-8")
    print(f"{len(steps)} detectors asked, the answer of {answer}, {cost:.0f} µs; {sys.argv[1]}")


def decision() -> tuple[list[dict[str, object]], str, float, float]:
    """Return the steps of one decision, the node that answers, its cost, and lingua's."""
    log = tt.datasets.load("langid", part="fit").take(slice(FIT_ROWS))
    row = tt.datasets.load("langid", part="test").take([ROW])
    policy = tt.fit(log).for_mistake_cost(MISTAKE)
    known = {name: float(values[0]) for name, values in row.signals.items()}
    turn = policy.session(signals=known)
    steps = []
    while turn.next is not None:
        node = row.names.index(turn.next)
        said = row.classes[int(row.prediction[0, node])]
        name, price = turn.next, turn.price
        turn.observe(confidence=float(row.confidence[0, node]), prediction=said)
        why = turn.explain()
        steps.append(
            {
                "node": name,
                "answer": said,
                "price": price,
                "spent": turn.cost,
                "wrong": why.beliefs[why.answer],
                "best": why.answer,
                "next": turn.next,
            }
        )
    right = row.classes[int(row.label[0])]
    returned = next(step["answer"] for step in steps if step["node"] == turn.answer)
    if returned != right:
        raise ValueError("the decision drawn should be a right one: choose another row")
    return steps, str(turn.answer), turn.cost, float(np.max(policy.spec.costs))


def _share(moment: int, moments: int) -> float:
    """Return when something appears, in percent: the loop starts with the finished drawing."""
    return 18 + 62 * moment / (moments - 1)


def drawing(steps: list[dict[str, object]], answer: str, cost: float, alone: float) -> str:
    """Return the drawing as SVG."""
    moments = len(steps) * 2 + 1
    shown = [
        f"@keyframes m{k} {{ 0%, 12% {{ opacity: 1 }} 14%, {_share(k, moments):.1f}% "
        f"{{ opacity: 0 }} {_share(k, moments) + 3:.1f}%, 100% {{ opacity: 1 }} }}\n"
        f".m{k} {{ animation: m{k} {SECONDS}s infinite }}"
        for k in range(moments)
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="One decision: three of five language detectors are asked">',
        "<style>",
        "text { font: 13px system-ui, sans-serif; fill: #1c2733 }",
        ".small { font-size: 12px; fill: #55606b } .bold { font-weight: 600; font-size: 15px }",
        ".card { fill: #ffffff; stroke: #d5dae0 } .box { fill: #f4f7f8; stroke: #1b7f79 }",
        ".won { fill: none; stroke: #c05a00; stroke-width: 3 } .track { fill: #dfe5e8 }",
        ".idle { fill: none; stroke: #98a3ad; stroke-dasharray: 4 4 }",
        ".bar { fill: #c05a00 } .go { fill: #1b7f79 } .wire { stroke: #1b7f79; stroke-width: 2 }",
        "@media (prefers-color-scheme: dark) { text { fill: #e8ecef } .small { fill: #a9b4bd } "
        ".card { fill: #161b20; stroke: #333c44 } .box { fill: #1f262c; stroke: #4db6ac } "
        ".track { fill: #333c44 } .bar, .won { stroke: none } .won { stroke: #ff9a4a } "
        ".bar { fill: #ff9a4a } .go { fill: #4db6ac } .wire { stroke: #4db6ac } }",
        "@media (prefers-reduced-motion: no-preference) {",
        *shown,
        "}",
        "</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        f'<text class="bold" x="{LEFT}" y="32">Which language is this?</text>',
        f'<text class="small" x="{LEFT}" y="52">One short message; five detectors could '
        "be asked.</text>",
    ]
    for number, step in enumerate(steps):
        x = LEFT + number * COLUMN
        parts.append(f'<g class="m{2 * number}">')
        if number:
            parts.append(f'<path class="wire" d="M{x - COLUMN + BOX} 108H{x}"/>')
        parts += [
            f'<rect class="box" x="{x}" y="72" width="{BOX}" height="72" rx="7"/>',
            f'<text class="bold" x="{x + 12}" y="95">{escape(str(step["node"]))}</text>',
            f'<text class="small" x="{x + BOX - 12}" y="95" text-anchor="end">'
            f"{step['price']:.0f} µs</text>",
            f'<text x="{x + 12}" y="120">answers <tspan font-weight="600">'
            f"{LANGUAGES.get(str(step['answer']), step['answer'])}</tspan></text>",
            "</g>",
            f'<g class="m{2 * number + 1}">',
            f'<text class="small" x="{x}" y="168">best answer so far</text>',
            f'<text x="{x}" y="186">wrong with chance {step["wrong"]:.0%}</text>',
            f'<rect class="track" x="{x}" y="195" width="{BOX}" height="9" rx="4"/>',
            f'<rect class="bar" x="{x}" y="195" width="{BOX * float(step["wrong"]):.1f}" '
            'height="9" rx="4"/>',
            f'<text class="go" x="{x}" y="226" font-weight="600">'
            + ("asking on pays" if step["next"] else "asking on costs too much")
            + "</text></g>",
        ]
    last = f"m{moments - 1}"
    place = [step["node"] for step in steps].index(answer)
    language = LANGUAGES.get(str(steps[place]["answer"]), steps[place]["answer"])
    x = LEFT + place * COLUMN
    parts += [
        f'<g class="{last}">',
        f'<rect class="won" x="{x - 3}" y="69" width="{BOX + 6}" height="78" rx="9"/>',
        f'<text class="bold" x="{LEFT}" y="264">Stop, and return {language}: the answer of '
        f"{escape(answer)}.</text>",
        f'<text class="small" x="{LEFT}" y="286">{cost:.0f} µs, where the most accurate detector '
        f"alone takes {alone:.0f}. It was not asked.</text>",
        f'<rect class="idle" x="{LEFT + len(steps) * COLUMN}" y="72" width="{BOX}" height="72" '
        'rx="7"/>',
        f'<text class="small" x="{LEFT + len(steps) * COLUMN + 12}" y="95">langid, lingua</text>',
        f'<text class="small" x="{LEFT + len(steps) * COLUMN + 12}" y="120">not asked</text>',
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
