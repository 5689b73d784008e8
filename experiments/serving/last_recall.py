"""Whether streams of the last node could begin at once, and the policy still recall an answer.

    python experiments/serving/last_recall.py --splits 4 --jobs 2       # about a minute

Three models of the traces llm-triviaqa and llm-mmlu. A policy is fitted to half of the rows, for
mistakes that cost 15 calls of the most expensive model, and decides for the others. Counted are the
rows on which several nodes are asked, and none could be asked after the last of them; of these, the
share on which the policy returns an earlier answer ("recalled"), and the share on which it returns
the last node's answer, or an equal one, whatever that is ("certain", ``turn.prefers_next()``). Only
on the latter can tokens be relayed at once without taking the choice from the policy. Means over
splits with standard errors.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from itertools import product
from pathlib import Path

import ttamer as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from over_splits import LLMS, add_options, load, mean, run, split

NODES = ("llama3.1-8b", "gpt-4o-mini", "gpt-4o")
MISTAKE = 15


def one_split(name: str, number: int) -> tuple[int, int, int]:
    """Return the rows that end at the last node, those recalled, and those certain."""
    warnings.simplefilter("ignore")
    pool, test = split(load(name).restrict(NODES), number)
    full = float(pool.costs.mean(axis=0).max())
    policy = tt.fit(pool).for_mistake_cost(MISTAKE * full)
    ended = recalled = certain = 0
    for row in range(len(test)):
        turn, texts = policy.session(key=str(row)), {}
        is_open = is_certain = True
        while (name := turn.next) is not None:
            is_open, is_certain = set(turn.ahead()) != {None}, turn.prefers_next()
            v = test.spec.index_of(name)
            code = int(test.prediction[row, v])
            texts[name] = test.classes[code] if code >= 0 else None
            turn.observe(confidence=float(test.confidence[row, v]), prediction=texts[name])
        if is_open or len(texts) == 1:
            continue
        ended += 1
        certain += is_certain
        last, text = turn.asked[-1], texts[turn.answer]
        recalled += turn.answer != last and (text is None or text != texts[last])
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
