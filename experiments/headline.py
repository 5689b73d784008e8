"""The figure and the table of the README: what the default policy saves, over random splits.

    python experiments/headline.py --splits 16 --results headline.jsonl    # half an hour
    python experiments/headline.py --results headline.jsonl --figure docs/img/frontier-llm

For each split of a trace of the package, ``tt.fit(rows)`` gets half of the rows, and the policies
of its ladder are played on the other half. The table compares the default policy with the model
that errs least on the rows fitted to, with its own decisions dealt to other rows at random, and
with a calibrated chain tuned by hand: of all its settings the cheapest that errs no more than that
model on the rows fitted to. The figure has the whole ladder and every model alone.
"""

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import ttamer as tt
from ttamer import datasets
from ttamer.baselines import FAMILIES
from ttamer.stats.envelope import error_at_cost

sys.path.insert(0, str(Path(__file__).resolve().parent))
from over_splits import add_options, mean, run

SETS = {
    "llm-triviaqa": "nine LLMs, TriviaQA",
    "llm-mmlu": "nine LLMs, MMLU",
    "langid": "five language detectors",
    "minilm-imdb": "six exits of MiniLM, IMDB",
    "routerbench": "eleven LLMs, mixed prompts",
}
MAX_ROWS = 4000  # to fit, of a larger trace
SHARES = np.geomspace(3.0, 150.0, 80)  # of the cost of the best model, in percent


def main() -> None:
    """Print the table, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splits", type=int, default=16)
    parser.add_argument("--figure", type=Path, help="write FIGURE.png and FIGURE-dark.png")
    add_options(parser)
    args = parser.parse_args()
    results = run(measured, product(SETS, range(args.splits)), args)
    print(
        "| measured on | rows | ttamer saves | error, points | dealt at random: error, points "
        "| tuned chain saves | error, points |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, title in SETS.items():
        splits = [result for job, result in results.items() if job[0] == name]
        if not splits:
            continue
        ours, chain = (np.array([split[key] for split in splits]).T for key in ("default", "chain"))
        cells = [
            f"{mean(100 - cost, '.1f')}% | {mean(error, '+.2f')}" for cost, error in (ours, chain)
        ]
        cells.insert(1, mean([split["control"] for split in splits], "+.2f"))
        print(f"| {title} | {splits[0]['rows']} | {' | '.join(cells)} |")
    if args.figure:
        draw([result for job, result in results.items() if job[0] == "llm-triviaqa"], args.figure)


def measured(name: str, number: int) -> dict[str, Any]:
    """Return what one split shows of a trace; costs are in percent of the best model's.

    Errors of the default policy and of the chain are in points above the best model's.
    """
    trace = datasets.load(name)
    order = np.random.default_rng(number).permutation(len(trace))
    rows = min(len(trace) // 2, MAX_ROWS)
    fitted, test = trace.take(order[:rows]), trace.take(order[rows:])
    best = int(fitted.loss.mean(axis=0).argmin())
    ladder, chain = tt.fit(fitted), tuned_chain(fitted, test, best)
    alone = [tt.evaluate(ladder.alone(node), test, resamples=0) for node in test.names]
    alone_cost = np.array([result.cost for result in alone])
    alone_error = np.array([result.error for result in alone])

    def share_and_excess(policy: Any, test: tt.Trace = test) -> tuple[float, float]:
        result = tt.evaluate(policy, test, resamples=0)
        cost, error = result.cost / alone_cost[best], result.error - alone_error[best]
        return 100 * float(cost), 100 * float(error)

    points = np.array([share_and_excess(policy) for policy in ladder])
    return {
        "rows": rows,
        "default": share_and_excess(ladder.default()),
        "control": 100 * float(dealt_at_random(ladder.default(), test, number) - alone_error[best]),
        "chain": share_and_excess(*chain) if chain else (100.0, 0.0),
        "curve": [error_at_cost(*points.T, share) for share in SHARES],
        "names": list(test.names),
        "alone_cost": (100 * alone_cost / alone_cost[best]).tolist(),
        "alone_error": (100 * (alone_error - alone_error[best])).tolist(),
        "best_error": 100 * float(alone_error[best]),
    }


def dealt_at_random(policy: Any, test: tt.Trace, seed: int) -> float:
    """Return the error of a policy's decisions on other rows: at equal cost, without a reason."""
    order = np.random.default_rng([seed, 7]).permutation(len(test))
    return float(test.loss[np.arange(len(test)), policy.play(test).answer[order]].mean())


def tuned_chain(fitted: tt.Trace, test: tt.Trace, best: int) -> tuple[Any, tt.Trace] | None:
    """Return the cheapest setting of a chain that errs no more than a model on the same rows.

    None where no setting does: the model itself is asked then.
    With it come the test rows of the nodes it chooses among: the ten best of more, since a chain
    tries every subset. Of the exits of one network no subset is cheaper, and the chain is the
    family ``calibrated``.
    """
    allowed = fitted.loss[:, best].mean()
    mean_cost = fitted.costs.mean(axis=0)
    best_first = np.argsort(fitted.loss.mean(axis=0) + 0.2 * mean_cost / mean_cost.max())
    names = [fitted.names[node] for node in np.sort(best_first[: FAMILIES["chain"].max_nodes])]
    family = FAMILIES["calibrated" if fitted.spec.asks_each else "chain"]
    fitted, test = fitted.restrict(names), test.restrict(names)
    played = [
        (result.cost, setting.rule)
        for setting in family.fit(fitted)
        if (result := tt.evaluate(setting.rule, fitted, resamples=0)).error <= allowed
    ]
    return (min(played, key=lambda pair: pair[0])[1], test) if played else None


def draw(splits: list[dict[str, Any]], path: Path) -> None:
    """Draw error against cost: the mean of the ladder over splits, its band, every model alone."""
    import matplotlib.pyplot as plt

    curves = np.array([[np.nan if e is None else e for e in split["curve"]] for split in splits])
    level = np.mean([split["best_error"] for split in splits])
    shown = np.isfinite(curves).all(axis=0)
    middle = level + curves[:, shown].mean(axis=0)
    band = curves[:, shown].std(axis=0, ddof=1) / len(splits) ** 0.5
    costs = np.mean([split["alone_cost"] for split in splits], axis=0)
    errors = level + np.mean([split["alone_error"] for split in splits], axis=0)
    star = np.mean([split["default"] for split in splits], axis=0)
    for style, ink, paper, suffix in (
        ("default", "#1c2733", "#ffffff", ""),
        ("dark_background", "#e6e6e6", "#1e2129", "-dark"),
    ):
        with plt.style.context(style):
            figure, axes = plt.subplots(figsize=(8, 4.2), facecolor=paper)
            axes.set_facecolor(paper)
            x = SHARES[shown]
            axes.fill_between(x, middle - band, middle + band, color="#1b9e94", alpha=0.3, lw=0)
            axes.plot(x, middle, color="#1b9e94", lw=2.5, label="ttamer, mean of the splits")
            axes.plot(costs, errors, "o", color=ink, ms=5, label="one model for every input")
            axes.plot(
                star[0],
                level + star[1],
                "*",
                color="#e07b00",
                ms=17,
                label=f"default policy: {100 - star[0]:.0f}% saved",
            )
            for name, cost, error in zip(splits[0]["names"], costs, errors, strict=True):
                axes.annotate(name, (cost, error), (5, 4), textcoords="offset points", fontsize=8)
            axes.set(
                xscale="log", yscale="log", xlabel="cost, % of the best model's", ylabel="error, %"
            )
            axes.set_xticks([5, 10, 20, 50, 100], minor=False)
            axes.set_yticks([4, 6, 10, 20, 40], minor=False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
            figure.tight_layout()
            figure.savefig(f"{path}{suffix}.png", dpi=160, facecolor=paper)
            plt.close(figure)


if __name__ == "__main__":
    main()
