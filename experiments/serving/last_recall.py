"""Whether streams of the last node could begin at once, and the policy still recall an answer.

    python experiments/serving/last_recall.py --splits 4 --jobs 2       # about a minute

Three models of the traces llm-triviaqa and llm-mmlu. A policy is fitted to half of the rows, for
mistakes that cost 15 calls of the most expensive model, and decides for the others. Counted are the
rows on which several nodes are asked, and none could be asked after the last of them; of these, the
share on which the policy returns an earlier answer ("recalled"), and the share on which it returns
the last node's answer, or an equal one, whatever that is ("certain"): with the lowest and the
highest confidence, equal to any earlier answer or to none. Only on the latter could tokens be
relayed at once without taking the choice from the policy. Means over splits with standard errors.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import ttamer as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

NODES = ("llama3.1-8b", "gpt-4o-mini", "gpt-4o")
MISTAKE = 15
OTHER = "an answer that no node gave"


def answered(policy: Any, row: int, answers: list[tuple[float, str | None]]) -> Any:
    """Return a session that has these answers."""
    turn = policy.session(key=str(row))
    for confidence, text in answers:
        turn.observe(confidence=confidence, prediction=text)
    return turn


def is_certain(policy: Any, row: int, names: list[str], answers: list[Any]) -> bool:
    """Return whether the last answer, or an equal one, is returned whatever it is."""
    before = answers[:-1]
    texts = {text for _, text in before} | {OTHER, None}
    for confidence, text in product((-inf, inf), texts):
        turn = answered(policy, row, [*before, (confidence, text)])
        by = names.index(turn.answer)
        if by != len(before) and (text is None or before[by][1] != text):
            return False
    return True


def one_split(name: str, number: int) -> tuple[int, int, int]:
    """Return the rows that end at the last node, those recalled, and those certain."""
    warnings.simplefilter("ignore")
    pool, test = split(load(name).restrict(NODES), number)
    full = float(pool.costs.mean(axis=0).max())
    policy = tt.fit(pool).for_mistake_cost(MISTAKE * full)
    ended = recalled = certain = 0
    for row in range(len(test)):
        turn, names, answers, is_open = policy.session(key=str(row)), [], [], True
        while turn.next is not None:
            v, is_open = test.spec.index_of(turn.next), set(turn.ahead()) != {None}
            code = int(test.prediction[row, v])
            names.append(turn.next)
            answers.append(
                (float(test.confidence[row, v]), test.classes[code] if code >= 0 else None)
            )
            turn.observe(confidence=answers[-1][0], prediction=answers[-1][1])
        if is_open or len(names) == 1:
            continue
        ended += 1
        text = answers[names.index(turn.answer)][1]
        recalled += turn.answer != names[-1] and (text is None or text != answers[-1][1])
        certain += is_certain(policy, row, names, answers)
    return ended, recalled, certain


def main() -> None:
    """Print the shares for each trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=4)
    add_options(parser)
    options = parser.parse_args()
    found = run(one_split, product(LLMS, range(options.splits)), options)
    print("trace          rows that end at the last node      recalled       certain")
    for name in LLMS:
        rows = [counts for (trace, _), counts in found.items() if trace == name]
        print(f"{name:14} {mean([r[0] for r in rows], '.1f'):>30}"
              f"{mean([r[1] / r[0] for r in rows]):>16}"
              f"{mean([r[2] / r[0] for r in rows]):>16}")  # fmt: skip


if __name__ == "__main__":
    main()
