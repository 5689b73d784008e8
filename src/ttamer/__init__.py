"""Decide, per input, which model to ask, when to stop, and whose answer to return.

>>> import ttamer as tt
>>> cascade = tt.Problem.line(
...     losses=[0.05, 0.5],
...     costs=[0.1, 0.2],
...     probabilities=[[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
...     names=["small", "large"],
... )
>>> turn = tt.solve(cascade, tradeoff=0.6).session()
>>> turn.next
'small'
>>> turn.observe(1)  # small was seen in state 1, where it loses 0.5
>>> turn.next
'large'
>>> turn.observe(0)
>>> turn.next, turn.answer
(None, 'large')
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ttamer._version import __version__

if TYPE_CHECKING:
    from ttamer.artefact import inspect, load, save
    from ttamer.cascade import Cascade
    from ttamer.cascade_spec import CascadeSpec
    from ttamer.collecting import collect
    from ttamer.errors import (
        ArgumentError,
        ArtefactDamaged,
        ArtefactError,
        ArtefactTooNew,
        CascadeError,
        MissingExtra,
        ObservationError,
        ProblemError,
        TraceError,
        TTamerError,
    )
    from ttamer.evaluation import Result, evaluate
    from ttamer.fitted import FittedLadder, FittedPolicy
    from ttamer.fitting import fit
    from ttamer.grid import LossGrid
    from ttamer.index_policy import IndexPolicy
    from ttamer.ladder import Ladder
    from ttamer.mixture import Mixture
    from ttamer.outcome import CascadeFailed, Outcome
    from ttamer.play.future import Future
    from ttamer.policy import Policy
    from ttamer.problem import Edge, Node, Problem
    from ttamer.promise import Promise
    from ttamer.session import Explanation, Session
    from ttamer.simulation import Simulation, simulate
    from ttamer.solvers import solve, solve_ladder
    from ttamer.theory.optima import Optima, offline_optimum, optima
    from ttamer.trace import Trace
    from ttamer.walk_policy import WalkPolicy

# Where each public name lives. They load when first used: a server that only looks decisions up
# never loads the solvers, and ``import ttamer`` costs next to nothing.
_HOMES = {
    "ttamer.artefact": ("inspect", "load", "save"),
    "ttamer.cascade": ("Cascade",),
    "ttamer.cascade_spec": ("CascadeSpec",),
    "ttamer.collecting": ("collect",),
    "ttamer.errors": (
        "ArgumentError",
        "ArtefactDamaged",
        "ArtefactError",
        "ArtefactTooNew",
        "CascadeError",
        "MissingExtra",
        "ObservationError",
        "ProblemError",
        "TTamerError",
        "TraceError",
    ),
    "ttamer.evaluation": ("Result", "evaluate"),
    "ttamer.fitted": ("FittedLadder", "FittedPolicy"),
    "ttamer.fitting": ("fit",),
    "ttamer.grid": ("LossGrid",),
    "ttamer.index_policy": ("IndexPolicy",),
    "ttamer.ladder": ("Ladder",),
    "ttamer.mixture": ("Mixture",),
    "ttamer.outcome": ("CascadeFailed", "Outcome"),
    "ttamer.play.future": ("Future",),
    "ttamer.policy": ("Policy",),
    "ttamer.problem": ("Edge", "Node", "Problem"),
    "ttamer.promise": ("Promise",),
    "ttamer.session": ("Explanation", "Session"),
    "ttamer.simulation": ("Simulation", "simulate"),
    "ttamer.solvers": ("solve", "solve_ladder"),
    "ttamer.theory.optima": ("Optima", "offline_optimum", "optima"),
    "ttamer.trace": ("Trace",),
    "ttamer.walk_policy": ("WalkPolicy",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ArgumentError",
    "ArtefactDamaged",
    "ArtefactError",
    "ArtefactTooNew",
    "Cascade",
    "CascadeError",
    "CascadeFailed",
    "CascadeSpec",
    "Edge",
    "Explanation",
    "FittedLadder",
    "FittedPolicy",
    "Future",
    "IndexPolicy",
    "Ladder",
    "LossGrid",
    "MissingExtra",
    "Mixture",
    "Node",
    "ObservationError",
    "Optima",
    "Outcome",
    "Policy",
    "Problem",
    "ProblemError",
    "Promise",
    "Result",
    "Session",
    "Simulation",
    "TTamerError",
    "Trace",
    "TraceError",
    "WalkPolicy",
    "__version__",
    "collect",
    "evaluate",
    "fit",
    "inspect",
    "load",
    "offline_optimum",
    "optima",
    "save",
    "simulate",
    "solve",
    "solve_ladder",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ttamer' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
