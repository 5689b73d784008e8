"""Promises on real traces: how often they are broken, what they save, whether budgets are kept.

    python experiments/promises/splits.py [--traces NAME ...] [--splits 1000] [--workers 2]

Four rows in ten are fitted to, once. The others are the population: what any policy does on it is
known. Then, a thousand times, 1,000 rows are drawn from it and a promise is made on them, and is
broken where it was certified and the population errs more than was promised.

- *drawn*: the rows are drawn with replacement, so they are as new rows are, and the population's
  error is the truth itself. These are the numbers that the 95% is about.
- *split*: the plain split; the rows not drawn are the test. Their error is not the truth: it has
  noise of its own, and is high where the rows drawn happen to be easy; mixtures are played there as
  they serve.

Beside ``for_error`` and ``for_drop`` stand the rules of risk control for early exits (Jazbec et
al., 2024), on one confidence threshold for all nodes with as many settings as ours has mixes, and
on the corners of our own ladder, so that the policy and the test can be separated (CRC, UCB, LTT:
risk_control.py). For drops they are run once more with the last node put before our corners: it
drops by nothing, and passes every test; and with our own exact test in place of theirs.

Every number of docs/evidence/promises.md under "Promises" is printed by this command.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from budgets import Spent, kept, measure_budgets
from risk_control import (
    Sample,
    betting,
    corrected,
    crc,
    exact,
    in_sequence,
    most_wrong,
    paired,
    passes_paired,
)
from ttamer.fitted.promise import STEPS, HeldOut, cautious_pairs, count_pairs, pairs_of_corners

import ttamer as tt
from ttamer.baselines.rules import StopRule, walk_of
from ttamer.baselines.single import AlwaysLast
from ttamer.baselines.threshold import Confidence, common_thresholds
from ttamer.fitting.ladder import Mixture
from ttamer.fitting.replay import full_cost, paid
from ttamer.show.tables import table
from ttamer.stats.bounds import binomial_upper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from ttamer.fitted.promise import Kind

    from ttamer.fitting.ladder import FittedLadder, Mix
    from ttamer.fitting.replay import Rule
    from ttamer.trace.trace import Trace

    Measured = tuple[str, list["Outcome"], list[Spent]]

TRACES = ("langid", "vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10", "minilm-imdb",
          "minilm-amazon")  # fmt: skip
FITTED = 0.4
"""The share of rows fitted to."""
DRAWN = 1000
"""Rows on which a promise is made."""
CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
MORE = (0.01, 0.02, 0.05)
"""Errors promised: the last node's on the population and so much more; drops: so much."""
KINDS: tuple[Kind, ...] = ("error", "drop")
OURS = "ttamer"


# Settings and rows


@dataclass(frozen=True, eq=False)
class Settings:
    """What each setting of a family does on every row of the population, the safest first."""

    wrong: NDArray[np.bool_]
    """Shape (rows, settings)."""
    cost: NDArray[np.float64]
    """Shape (settings,): mean cost, as a share of the full model's."""

    @classmethod
    def of(cls, rules: Iterable[Rule], trace: Trace) -> Settings:
        """Play rules on a trace."""
        wrong, rows = trace.wrong(), np.arange(len(trace))
        played = [rule.play(trace) for rule in rules]
        return cls(
            np.column_stack([wrong[rows, each.answer] for each in played]),
            np.array([paid(each.asked, trace).mean() for each in played])
            / full_cost(trace.spec, trace),
        )


@dataclass(frozen=True, eq=False)
class Population:
    """A ladder fitted to some rows, and the others, on which everything is known."""

    name: str
    ladder: FittedLadder
    trace: Trace
    corners: Settings
    """Of the ladder."""
    threshold: Settings
    last_first: Settings
    """The last node by itself, then the corners."""
    last: NDArray[np.bool_]
    """Shape (rows,): where the last node is wrong."""
    rungs: tuple[int, ...]
    """The corners' rungs."""
    cautious: Settings | None
    """The cautious policies of the ladder, where it has any."""

    @classmethod
    def of(cls, name: str, trace: Trace, seed: int = 0) -> Population:
        """Fit to a share of the rows, and play on the others."""
        fit_part, trace = trace.split(FITTED, seed)
        ladder = tt.fit(fit_part)
        rungs = ladder.require_rungs().corners[::-1]
        mixes = STEPS * (len(rungs) - 1) + 1
        corners = [ladder[rung] for rung in rungs]
        last = [setting.rule for setting in AlwaysLast().fit(fit_part)]
        return cls(
            name,
            ladder,
            trace,
            Settings.of(corners, trace),
            Settings.of(thresholds(fit_part, mixes), trace),
            Settings.of([*last, *corners], trace),
            trace.wrong()[:, -1],
            rungs,
            None
            if ladder.cautious is None
            else Settings.of(
                [ladder.rung(len(ladder) + k) for k in reversed(range(len(ladder.cautious)))],
                trace,
            ),
        )

    def ours(self, kind: Kind) -> tuple[Settings, dict[int, int]]:
        """Return the policies that a promise of ours mixes, and the place of each rung."""
        if kind == "error" or self.cautious is None:
            return self.corners, {rung: place for place, rung in enumerate(self.rungs)}
        first, count = len(self.ladder), len(self.cautious.cost)
        return self.cautious, {first + k: count - 1 - k for k in range(count)}

    def families(self, kind: Kind) -> dict[str, Settings]:
        """Return what the rules of risk control are run on."""
        found = {"threshold": self.threshold, "corners of ours": self.corners}
        return found if kind == "error" else {**found, "last, then corners": self.last_first}

    def at_most(self, kind: Kind, more: float) -> float:
        """Return what is promised."""
        return more if kind == "drop" else float(self.last.mean()) + more

    def losses(self, settings: Settings, kind: Kind) -> NDArray[np.float64]:
        """Return, shape (rows, settings), what each row loses, moved to lie between 0 and 1."""
        if kind == "error":
            return settings.wrong.astype(np.float64)
        return (1.0 + settings.wrong - self.last[:, np.newaxis]) / 2

    def held(self, rows: NDArray[np.intp], digest: str) -> HeldOut:
        """Return some rows as ``HeldOut.of`` counts them, without playing them again."""
        pairs = pairs_of_corners(self.rungs[::-1])
        wrong = self.corners.wrong[rows][:, ::-1].astype(np.intp)
        codes = (
            2 * wrong[:, -len(pairs) :] + self.last[rows, np.newaxis]
        )  # the more expensive of each pair
        codes = codes + 4 * wrong[:, : len(pairs)] + 8 * np.arange(len(pairs))
        counts = np.bincount(codes.ravel(), minlength=8 * len(pairs)).reshape(-1, 2, 2, 2)
        held = HeldOut(len(rows), digest, self.trace.names[-1], pairs, counts)
        if self.cautious is None:
            return held
        wrong = list(self.cautious.wrong[rows].T[::-1])
        pairs = cautious_pairs(len(self.ladder), len(wrong))
        counts = count_pairs(wrong, self.last[rows])
        own = HeldOut(len(rows), digest, self.trace.names[-1], pairs, counts)
        return dataclasses.replace(held, cautious=own)


def thresholds(trace: Trace, most: int) -> list[StopRule]:
    """Return confidence thresholds, one for all nodes, the highest first: it never stops early."""
    walk = walk_of(trace)
    cuts = common_thresholds(trace, Confidence(), walk, most)[::-1]
    return [StopRule(Confidence(), walk, np.full(len(walk) - 1, cut)) for cut in cuts]


@dataclass(frozen=True, eq=False)
class Draws:
    """Rows of the population, drawn many times."""

    design: str
    rows: NDArray[np.intp]
    """Shape (splits, rows drawn), in the order drawn."""
    rest: NDArray[np.intp] | None
    """Shape (splits, rows left): those not drawn, where they are the test."""

    @classmethod
    def of(cls, design: str, population: int, splits: int, seed: int = 1) -> Draws:
        """Draw, with replacement (``"drawn"``) or not (``"split"``)."""
        generator = np.random.default_rng(seed)
        count = min(DRAWN, population // 2)
        if design == "drawn":
            return cls(design, generator.integers(0, population, (splits, count)), None)
        order = np.tile(np.arange(population, dtype=np.int32), (splits, 1))
        order = generator.permuted(order, axis=1)
        return cls(design, order[:, :count], order[:, count:])


# Rules

RULES: dict[Kind, dict[str, Callable[[Sample], NDArray[np.intp]]]] = {
    "error": {
        "CRC": crc,
        "UCB": partial(in_sequence, test=betting, alpha=ALPHA),
        "LTT, Bonferroni": partial(corrected, test=exact, alpha=ALPHA),
        "LTT, in sequence": partial(in_sequence, test=exact, alpha=ALPHA),
    },
    "drop": {
        "CRC": crc,
        "UCB = LTT, in sequence": partial(in_sequence, test=betting, alpha=ALPHA),
        "our test, in sequence": partial(in_sequence, test=paired, alpha=ALPHA),
        "LTT, Bonferroni": partial(corrected, test=betting, alpha=ALPHA),
    },
}


# What came of it


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one rule returned for one promise, split by split."""

    trace: str
    kind: Kind
    more: float
    at_most: float
    settings: str
    rule: str
    design: str
    certified: NDArray[np.bool_]
    risk: NDArray[np.float64]
    """The error, or the drop, of what was returned: on the population, or on the test rows."""
    cost: NDArray[np.float64]
    """On the population, as a share of the full model's; the safest's where none is certified."""

    @property
    def certified_cost(self) -> float:
        """Mean cost, that of the full model where nothing is certified."""
        return float(np.where(self.certified, self.cost, 1.0).mean())

    @property
    def broken(self) -> int:
        """How many splits certified what does not hold."""
        return int(np.count_nonzero(self.certified & (self.risk > self.at_most + 1e-12)))

    def line(self) -> dict[str, Any]:
        """Return plain numbers."""
        splits = len(self.cost)
        return {
            "trace": self.trace, "kind": self.kind, "more": self.more, "at_most": self.at_most,
            "settings": self.settings, "rule": self.rule, "design": self.design, "splits": splits,
            "broken": self.broken / splits, "broken_interval": interval(self.broken, splits),
            "certified": float(self.certified.mean()), "cost": self.certified_cost,
            "returned": float(self.cost.mean()), "risk": float(self.risk.mean()),
        }  # fmt: skip


def interval(found: int, of: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Clopper and Pearson).

    >>> [round(end, 4) for end in interval(0, 1000)]
    [0.0, 0.0037]
    """
    return 1 - binomial_upper(of - found, of, 0.025), binomial_upper(found, of, 0.025)


def promised(held: HeldOut, wishes: Sequence[tuple[Kind, float]]) -> list[tuple[bool, Mix]]:
    """Return what ``for_error`` and ``for_drop`` would: whether certified, and the mix.

    The wishes of a kind are tested in one walk, and no bounds are worked out, which saves most of
    the time.
    """
    found: list[tuple[bool, Mix]] = []
    for kind in dict.fromkeys(kind for kind, _ in wishes):
        levels = [at_most for each, at_most in wishes if each == kind]
        suited = held.suited_to(kind)
        safest, *_ = mixes = suited.mixes(STEPS)
        chosen = [(False, safest)] * len(levels)
        left = list(range(len(levels)))
        for mix in mixes:
            outcomes = suited.outcomes(mix)
            left = [wish for wish in left if _passes(outcomes, kind, levels[wish])]
            for wish in left:
                chosen[wish] = (True, mix)
            if not left:
                break
        found += chosen
    return found


def _passes(outcomes: NDArray[np.int64], kind: Kind, at_most: float) -> bool:
    if kind == "error":
        return bool(outcomes[1].sum() <= most_wrong(int(outcomes.sum()), at_most, ALPHA))
    worse, better = int(outcomes[1, 0]), int(outcomes[0, 1])
    return passes_paired(worse, better, int(outcomes.sum()), at_most, ALPHA)


def promise_ours(population: Population, draws: Draws) -> list[Outcome]:
    """Ask our ladder for every promise on every draw."""
    ladder, base = population.ladder, float(population.last.mean())
    ours = {kind: population.ours(kind) for kind in KINDS}
    errors = {kind: settings.wrong.mean(axis=0) for kind, (settings, _) in ours.items()}
    wishes = [(kind, more) for kind in KINDS for more in MORE]
    asked = [(kind, population.at_most(kind, more)) for kind, more in wishes]
    certified = np.empty((len(wishes), len(draws.rows)), bool)
    risks, costs = np.empty(certified.shape), np.empty(certified.shape)
    for split, rows in enumerate(draws.rows):
        held = population.held(rows, f"{population.name} {draws.design} {split}")
        for wish, (passed, mix) in enumerate(promised(held, asked)):
            kind = wishes[wish][0]
            settings, place = ours[kind]
            cheap, expensive, share = place[mix.cheap], place[mix.expensive], mix.share
            if (
                draws.rest is None
            ):  # a row drawn again gets the more expensive policy with this chance
                mine = errors[kind]
                error, last = (1 - share) * mine[cheap] + share * mine[expensive], base
            else:
                rest = draws.rest[split]
                mixture = Mixture(ladder.rung(mix.cheap), ladder.rung(mix.expensive), share)
                served = np.where(mixture.draws(len(rest)), expensive, cheap)
                error = settings.wrong[rest, served].mean()
                last = population.last[rest].mean()
            certified[wish, split] = passed
            risks[wish, split] = error - last * (asked[wish][0] == "drop")
            spent = settings.cost
            costs[wish, split] = (1 - share) * spent[cheap] + share * spent[expensive]
    return [
        Outcome(population.name, kind, more, at_most, "mixes of ours", OURS, draws.design, *each)
        for (kind, more), (_, at_most), *each in zip(
            wishes, asked, certified, risks, costs, strict=True
        )
    ]


def promise_theirs(population: Population, draws: Draws, kind: Kind, family: str) -> list[Outcome]:
    """Run the rules of risk control on one family's settings, for every promise."""
    settings = population.families(kind)[family]
    losses = population.losses(settings, kind)
    sums = np.stack([losses[rows].sum(axis=0) for rows in draws.rows])
    means = losses.mean(axis=0)[np.newaxis]
    if draws.rest is not None:
        means = (losses.sum(axis=0) - sums) / draws.rest.shape[1]
    risks = means if kind == "error" else 2 * means - 1
    risks = np.broadcast_to(risks, sums.shape)
    found = []
    for more in MORE:
        at_most = population.at_most(kind, more)
        level = at_most if kind == "error" else (1 + at_most) / 2
        for name, rule in RULES[kind].items():
            chosen = rule(Sample(losses, draws.rows, sums, level))
            setting = np.maximum(chosen, 0)  # the safest where none is certified
            risk = risks[np.arange(len(setting)), setting]
            found.append(Outcome(population.name, kind, more, at_most, family, name, draws.design,
                                 chosen >= 0, risk, settings.cost[setting]))  # fmt: skip
    return found


def measure_promises(population: Population, splits: int) -> list[Outcome]:
    """Make every promise by every rule, on rows drawn and on splits."""
    found = []
    for design in ("drawn", "split"):
        draws = Draws.of(design, len(population.trace), splits)
        found += promise_ours(population, draws)
        for kind in KINDS:
            for family in population.families(kind):
                found += promise_theirs(population, draws, kind, family)
    return found


# Tables

LEGEND = f"""\
Broken: certified, and the population errs more (95% interval of Clopper and Pearson); at most
{ALPHA:.0%} is promised, but for CRC, which promises no such thing. Certified: how often the rule
could promise at all. Cost: mean over all splits, 100% being the full model, which also stands for
splits where nothing is certified. Returned: the same with the safest setting there, which is what
the rules return. Risk: the error or the drop of that. Broken, split: by the rows not drawn; their
noise (its standard error is in the heading) moves it up, and that fewer ways to draw are left
without replacement moves it down."""


def summarise(population: Population, outcomes: Sequence[Outcome]) -> str:
    """Return one trace's promises as tables under headings."""
    rest = len(population.trace) - min(DRAWN, len(population.trace) // 2)
    text = [
        f"{population.name}: {population.ladder.fitted.rows} rows to fit, {len(population.trace)} "
        f"in the population; last node {population.last.mean():.2%}; "
        f"{len(population.rungs)} corners, {STEPS * (len(population.rungs) - 1) + 1} mixes, "
        f"{population.threshold.wrong.shape[1]} thresholds"
    ]
    keys = dict.fromkeys((each.kind, each.more, each.at_most) for each in outcomes)
    for kind, more, at_most in keys:
        chosen = [e for e in outcomes if (e.kind, e.more) == (kind, more)]
        split = {(e.settings, e.rule): e for e in chosen if e.design == "split"}
        rows = []
        for each in (e for e in chosen if e.design == "drawn"):
            line, plain = each.line(), split[each.settings, each.rule].line()
            low, high = line["broken_interval"]
            rows.append([
                each.rule, each.settings, f"{line['broken']:.1%}", f"{low:.1%} to {high:.1%}",
                f"{line['certified']:.1%}", f"{line['cost']:.1%}", f"{line['returned']:.1%}",
                f"{line['risk']:.2%}",
                f"{plain['broken']:.1%}",
            ])  # fmt: skip
        spread = (at_most * (1 - at_most) / rest) ** 0.5
        noise = f"; noise of the test rows {100 * spread:.2f}" if kind == "error" else ""
        head = [
            "rule",
            "settings",
            "broken",
            "95%",
            "certified",
            "cost",
            "returned",
            "risk",
            "broken, split",
        ]
        text.append(f"\n{kind} at most {at_most:.2%} (+{100 * more:g} points{noise})\n")
        text.append(table(head, rows))
    return "\n".join(text)


def summed(outcomes: Sequence[Outcome]) -> str:
    """Return each rule over all traces and promises, draws with replacement."""
    text = []
    for kind in KINDS:
        rules: dict[tuple[str, str], list[Outcome]] = {}
        for each in outcomes:
            if each.kind == kind and each.design == "drawn":
                rules.setdefault((each.rule, each.settings), []).append(each)
        mine = next(found for (rule, _), found in rules.items() if rule == OURS)
        rows = []
        for (rule, settings), found in rules.items():
            broken = [each.broken / len(each.cost) for each in found]
            ratio = [e.certified_cost / m.certified_cost for e, m in zip(found, mine, strict=True)]
            rows.append([
                rule, settings, f"{np.mean(broken):.1%}", f"{max(broken):.1%}",
                str(sum(each.line()["broken_interval"][0] > ALPHA for each in found)),
                f"{np.mean([each.certified.mean() for each in found]):.1%}",
                f"{np.mean([each.certified_cost for each in found]):.1%}",
                f"{np.exp(np.mean(np.log(ratio))):.3f}",
                str(sum(each > 1 for each in ratio)), str(sum(each < 1 for each in ratio)),
            ])  # fmt: skip
        head = ["rule", "settings", "broken", "worst", "surely above 5%", "certified", "cost",
                "over ours", "costlier", "cheaper"]  # fmt: skip
        text.append(f"{kind}: means over {len(mine)} promises\n\n{table(head, rows)}")
    return "\n\n".join(text)


def measure_all(names: Sequence[str], splits: int, fits: int, workers: int) -> Iterator[Measured]:
    """Measure some traces, several at a time."""
    one = partial(measure, splits=splits, fits=fits)
    if workers == 1:
        yield from map(one, names)
    else:
        with ProcessPoolExecutor(workers) as pool:
            yield from pool.map(one, names)


def measure(name: str, splits: int, fits: int) -> Measured:
    """Measure one trace: what to print, and what to sum up."""
    trace = traces.load(name)
    population = Population.of(name, trace)
    outcomes = measure_promises(population, splits)
    return summarise(population, outcomes), outcomes, measure_budgets(name, trace, FITTED, fits)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--traces", nargs="+", default=TRACES, choices=traces.names(),
                        metavar="NAME", help=f"by default {' '.join(TRACES)}")  # fmt: skip
    parser.add_argument("--splits", type=int, default=1000, metavar="N", help="default 1000")
    parser.add_argument("--fits", type=int, default=5, metavar="N",
                        help="for each trace, that are asked for budgets (default 5)")  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    args = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    spent: list[Spent] = []
    for text, found, paid_for in measure_all(args.traces, args.splits, args.fits, args.workers):
        print(f"{text}\n", flush=True)
        outcomes += found
        spent += paid_for
    print(f"{LEGEND}\n\n{summed(outcomes)}\n\n{kept(spent)}")
    if args.json:
        lines = {
            "promises": [each.line() for each in outcomes],
            "budgets": [{**vars(each), "off": each.off, "noise": each.noise} for each in spent],
        }
        args.json.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
