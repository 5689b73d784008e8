"""Which policies and thresholds tables.py times: fitted by other processes to measured times."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import ttamer as tt
from ttamer.baselines import FAMILIES
from ttamer.torch import tuning
from ttamer.torch.profiling import Profile

LEVELS = (0.0, 0.01)
"""Errors allowed above the network's own."""
CAUTION = tuning.CAUTION
"""The standard errors to spare, as many as ``recommend`` keeps."""
SETS = 3
"""Sets of ramps, for each batch size and level, that other engines fit to."""
TRACE, TIMES = "trace.npz", "times.json"
"""The files that other processes read."""
OWN = "last"
"""The target that stands for the answers of the network itself."""


def choose(pool, trace, measured, sets, candidates):
    """Return, per batch size, the best policies for each level, and a threshold for each.

    The best of those fitted to the network's own answers is always among the policies of +0. Other
    processes read trace and times from files: sending them with each job would disturb timings.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder)
        trace.write(path / TRACE)
        measured.save(path / TIMES)
        rules = [pool.submit(thresholds, path, batch) for batch in measured.sizes]
        ranked = search(pool, path, measured, sets)
        limits = [rule.result() for rule in rules]
    found = {}
    for batch, rule in zip(measured.sizes, limits, strict=True):
        some = [ranked[batch, level][:candidates] for level in LEVELS]
        own = next((each for each in ranked[batch, 0.0] if fitted_to_own(each)), None)
        if own is not None and not any(fitted_to_own(each) for each in some[0]):
            some[0].append(own)
        found[batch] = some, rule
    return found


def fitted_to_own(candidate) -> bool:
    """Return whether a policy was fitted to the answers of the network itself."""
    return candidate.policy.fitted.spec.target == OWN


def search(pool, path, measured, sets):
    """Return, per batch size and level, the policies found, the lowest predicted time first.

    Sets of ramps grow by one ramp at a time, as in ``tuning.search``, for all batch sizes and
    levels at once, and for +0 also with policies fitted to the answers of the network itself; the
    largest sets, and all ramps, are tried with both. The best sets are noted in ``sets``; where
    there are some, only they, and all ramps, are fitted to.
    """
    batches, every = measured.sizes, range(len(measured.names) - 1)
    found = {(batch, level): {} for batch in batches for level in LEVELS}
    jobs = {}

    def begin(batch, ramps, target=None):
        if (batch, ramps, target) not in jobs:
            jobs[batch, ramps, target] = pool.submit(fastest, path, batch, ramps, target)

    def note(batch, level, ramps, target=None):
        best = jobs[batch, ramps, target].result()[LEVELS.index(level)]
        if best is None:
            return float("inf")
        key, known = (best.ramps, target), found[batch, level]
        if best.ramps and (key not in known or best.seconds < known[key][0].seconds):
            known[key] = best, ramps
        return best.seconds

    whole = tuning.many_ramps(len(every))
    known = {batch: {whole} for batch in batches}
    for batch in batches:  # the longest work first
        begin(batch, whole, OWN)
        begin(batch, whole)
    brief = all(str(batch) in sets for batch in batches)
    if brief:
        for batch in batches:
            known[batch] |= {tuple(ramps) for ramps in sets[str(batch)]}
    else:
        kept = dict.fromkeys(
            [*((*key, None) for key in found), *((n, 0.0, OWN) for n in batches)], ()
        )
        for _ in range(min(tuning.MAX_RAMPS, len(every))):
            grown = {key: [tuple(sorted((*some, ramp))) for ramp in every if ramp not in some]
                     for key, some in kept.items()}  # fmt: skip
            for (batch, _, target), several in grown.items():
                for ramps in several:
                    begin(batch, ramps, target)
            for (batch, level, target), several in grown.items():
                times = {ramps: note(batch, level, ramps, target) for ramps in several}
                kept[batch, level, target] = min(times, key=lambda ramps: times[ramps])
        for (batch, *_), ramps in kept.items():
            known[batch].add(ramps)
    for batch in batches:
        for ramps in known[batch]:
            begin(batch, ramps)
            begin(batch, ramps, OWN)
    for batch, level in found:
        for ramps in known[batch]:
            note(batch, level, ramps)
            note(batch, level, ramps, OWN)
    ranked = {key: sorted(some.values(), key=lambda pair: pair[0].seconds)
              for key, some in found.items()}  # fmt: skip
    if not brief:
        for batch in batches:
            best = [pair[1] for level in LEVELS for pair in ranked[batch, level][:SETS]]
            sets[str(batch)] = [list(ramps) for ramps in dict.fromkeys(best)]
    return {key: [pair[0] for pair in some] for key, some in ranked.items()}


@lru_cache(maxsize=1)
def read(path):
    """Return the trace and the times in a folder."""
    return tt.Trace.read(path / TRACE), Profile.load(path / TIMES)


def fastest(path, batch, ramps, target):
    """Return the policy with the lowest predicted time for each level, or ``None``.

    ``target``: what it is fitted to, if not the trace's own.
    """
    trace, measured = read(path)
    own = float(trace.wrong()[:, -1].mean())
    every = tuning.fitted_for(trace, measured, batch, ramps, target=target)
    return [
        min(
            (each for each in every if each.error + CAUTION * each.spread <= own + level),
            key=lambda each: each.seconds,
            default=None,
        )
        for level in LEVELS
    ]


def thresholds(path, batch):
    """Return the cheapest threshold within each allowance, or ``None`` where there is none."""
    trace, measured = read(path)
    trace = trace.with_spec(measured.costs(batch).spec(skip=True))
    rules = [setting.rule for setting in FAMILIES["threshold"].fit(trace)]
    errors = [errors_of(rule, trace) for rule in rules]
    costs = [tt.evaluate(rule, trace, resamples=0).cost for rule in rules]
    found = []
    for level in LEVELS:
        able = [(cost, k) for k, (cost, error) in enumerate(zip(costs, errors, strict=True))
                if error["more"] + CAUTION * error["more_se"] <= level]  # fmt: skip
        found.append(rules[min(able)[1]] if able else None)
    return found


def errors_of(rule, trace, timed=0) -> dict:
    """Return the error of a rule, and its difference to the network's with a standard error.

    For the first rows, those that are timed, also what a runner should come to: the error, and the
    exits asked.
    """
    wrong, played = trace.wrong().astype(float), rule.play(trace)
    its = wrong[np.arange(len(trace)), played.answer]
    more = its - wrong[:, -1]
    found = {"error": float(its.mean()), "more": float(more.mean()),
             "more_se": float(more.std() / np.sqrt(len(trace)))}  # fmt: skip
    if timed:
        found["error_by_trace"] = float(its[:timed].mean())
        found["asked_by_trace"] = float(played.asked[:timed].sum(axis=1).mean())
    return found
