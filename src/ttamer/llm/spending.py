"""A collection within a budget: a random core first, then what lowers the uncertainty most."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ttamer._checks import counted
from ttamer.errors import ArgumentError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.collection import Collection
from ttamer.llm.paid import key_of
from ttamer.trace.trace import Trace


async def spend(run: Collection, budget: float, core: int = 100) -> None:
    """Ask about prompts in random order, the same in every run, until the budget is spent.

    First every node is asked about a core of at least ``core`` prompts; then what a fit to it says
    is worth most.
    """
    order, names = sorted(run.bodies, key=lambda key: key_of("order", key)), [*run.asked]
    price = sum(run.asked[name].expected(run.bodies[order[0]]) for name in names)
    if price > budget:
        raise ArgumentError(
            f"budget is {budget:g}, and one prompt may cost {price:g} by all nodes together",
            param="budget",
        )
    for count in (core // 5, core):  # the first ones say what a prompt costs
        await _ask_some(run, order[:count], names, budget)
    # Half of the budget goes to complete rows in any case: a fit to a small core errs.
    await _ask_some(run, order, names, budget / 2)
    if not run.answered_rows or run.spent >= budget:
        return
    await run.ask_judge()
    trace = await run.trace()
    try:
        plan = plan_calls(fit(trace, inputs=False), trace, budget - run.spent)
    except TTamerError:  # too little is known, or what is right: complete rows are worth most
        await _ask_some(run, order, names, budget)
        return
    complete = len(run.asked[names[0]].answers) + plan.complete
    await _ask_some(run, order[:complete], names, budget)
    for name, count in (*plan.alone.items(), *dict.fromkeys(names, len(order)).items()):
        lacking = [key for key in order if key not in run.asked[name].answers]
        await _ask_some(run, lacking[:count], [name], budget)  # the rest completes rows


async def _ask_some(
    run: Collection, keys: Sequence[str], names: Sequence[str], budget: float
) -> None:
    """Ask nodes about those of some prompts that the budget pays for."""
    keys = [key for key in keys if any(run.asked[name].is_open(key) for name in names)]
    if keys:
        price = sum(run.asked[name].expected(run.bodies[keys[0]]) for name in names)
        affordable = int((budget - run.spent) / price * (1 + 1e-9))
        await run.ask(keys[: max(0, affordable)], names)


def notes_on_worth(trace: Trace, spent: float, budget: float) -> list[str]:
    """Return what was spent, and what more is worth."""
    notes = [f"{spent:g} of {budget:g} spent on {counted(len(trace), 'prompt')}"]
    with suppress(TTamerError):
        plan = plan_calls(fit(trace, inputs=False), trace, budget / 10)
        before, after = (100 * 1.96 * error for error in (plan.error, plan.error_after))
        notes.append(
            f"the errors of policies are known to {before:.2g} points; {plan.cost:g} more would "
            f"make that {after:.2g}"
        )
    return notes
