"""Unequal mistakes: what predicting one class costs where another is right.

``[cascade] mistakes`` is a table by label, then by prediction. ``"*"`` stands for any class not
named: of a label, ``mistakes.fraud."*"`` is what any other answer costs where fraud is right; of a
prediction, ``mistakes."*".fraud`` is what a false alarm of fraud costs. A mistake that no entry is
for costs 1; a right answer costs 0; no answer costs as much as the worst mistake on that label.

::

    [cascade]
    mistakes = {fraud = {"*" = 20.0}, "*" = {fraud = 2.0}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ttamer._numbers import is_number
from ttamer.errors import CascadeError

# Stands for every class that is not named.
ANY_CLASS = "*"
# What a mistake costs that no entry is for.
DEFAULT_COST = 1.0


def checked_mistakes(given: object) -> dict[str, dict[str, float]]:
    """Return a table of mistakes with its costs as floats, or raise what is wrong with it.

    >>> checked_mistakes({"fraud": {"*": 20}})
    {'fraud': {'*': 20.0}}
    >>> checked_mistakes({"fraud": {"fraud": 1}})
    Traceback (most recent call last):
    ttamer.errors.CascadeError: [cascade]: mistakes.fraud.fraud: a right answer costs 0; remove it
    """
    if not isinstance(given, dict):
        raise CascadeError(f"[cascade]: mistakes must be a table by label, not {given!r}")
    checked: dict[str, dict[str, float]] = {}
    for label, row in given.items():
        if not isinstance(label, str):
            raise CascadeError(f"[cascade]: mistakes: {label!r} must be text, such as '{label}'")
        if not isinstance(row, dict):
            raise CascadeError(
                f"[cascade]: mistakes.{label}: must be a table of costs by prediction, not {row!r}"
            )
        checked[label] = {}
        for prediction, cost in row.items():
            place = f"[cascade]: mistakes.{label}.{prediction}"
            if not isinstance(prediction, str):
                raise CascadeError(f"{place}: {prediction!r} must be text, such as '{prediction}'")
            if prediction == label != ANY_CLASS:
                raise CascadeError(f"{place}: a right answer costs 0; remove it")
            if not is_number(cost) or not math.isfinite(cost) or cost < 0:
                raise CascadeError(f"{place}: {cost!r} must be a finite number, not negative")
            checked[label][prediction] = float(cost)
    return checked


def mistake_table(
    mistakes: Mapping[str, Mapping[str, float]], classes: Sequence[str]
) -> NDArray[np.float64]:
    """Return, shape (classes, classes + 1), the cost by label and prediction.

    The last column is for no answer. An entry for both comes before one for the label alone, and
    that before one for the prediction.

    >>> mistake_table({"a": {"*": 5.0}, "*": {"c": 2.0}}, ["a", "b", "c"]).tolist()
    [[0.0, 5.0, 5.0, 5.0], [1.0, 0.0, 2.0, 2.0], [1.0, 1.0, 0.0, 1.0]]
    """
    number = {name: code for code, name in enumerate(classes)}
    others = mistakes.get(ANY_CLASS, {})
    table = np.full((len(classes), len(classes)), others.get(ANY_CLASS, DEFAULT_COST))
    for prediction, cost in others.items():
        if prediction in number:
            table[:, number[prediction]] = cost
    for label, row in mistakes.items():
        if label not in number:
            continue
        if ANY_CLASS in row:
            table[number[label]] = row[ANY_CLASS]
        for prediction, cost in row.items():
            if prediction in number:
                table[number[label], number[prediction]] = cost
    np.fill_diagonal(table, 0.0)
    worst = table.max(axis=1, initial=0.0)
    for label, row in mistakes.items():  # the worst mistake may be a class that is never predicted
        if label in number:
            worst[number[label]] = max(worst[number[label]], *row.values(), 0.0)
    return np.column_stack([table, worst])


def largest_mistake(mistakes: Mapping[str, Mapping[str, float]]) -> float:
    """Return the most that a mistake can cost, whatever the classes.

    >>> largest_mistake({"fraud": {"*": 20.0}}), largest_mistake({"*": {"*": 0.5}})
    (20.0, 0.5)
    """
    costs = [cost for row in mistakes.values() for cost in row.values()]
    if ANY_CLASS not in mistakes.get(ANY_CLASS, {}):
        costs.append(DEFAULT_COST)
    return max(costs)
