"""Embedded examples: problems to try things on."""

from __future__ import annotations

from ttamer.problem.problem import Problem

__all__ = ["three_models"]


def three_models() -> Problem:
    """Return a small, a middle and a large model; a state is a level of confidence.

    The loss of a state is the chance that the answer is wrong. The large model is not always
    better: on inputs where the small one is sure, it is right more often.

    >>> three_models().names
    ('small', 'middle', 'large')
    """
    return Problem.line(
        losses=[[0.02, 0.15, 0.45], [0.03, 0.12, 0.40], [0.04, 0.10, 0.30]],
        costs=[0.02, 0.15, 1.0],
        probabilities=[
            [0.55, 0.25, 0.20],
            [[0.80, 0.15, 0.05], [0.45, 0.35, 0.20], [0.20, 0.30, 0.50]],
            [[0.85, 0.12, 0.03], [0.50, 0.35, 0.15], [0.20, 0.40, 0.40]],
        ],
        names=["small", "middle", "large"],
    )
