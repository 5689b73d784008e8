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

__version__ = "0.3.0"

if TYPE_CHECKING:  # the same names as below, for type checkers
    from ttamer import datasets as datasets
    from ttamer.artefact.file import inspect as inspect, load as load, save as save
    from ttamer.cascade import CascadeSpec as CascadeSpec
    from ttamer.errors import (
        ArgumentError as ArgumentError,
        ArtefactDamaged as ArtefactDamaged,
        ArtefactError as ArtefactError,
        ArtefactTooNew as ArtefactTooNew,
        CascadeError as CascadeError,
        MissingExtra as MissingExtra,
        ObservationError as ObservationError,
        ProblemError as ProblemError,
        TraceError as TraceError,
        TraceWarning as TraceWarning,
        TTamerError as TTamerError,
    )
    from ttamer.evaluation.frontiers import Frontier as Frontier, frontier as frontier
    from ttamer.evaluation.results import Result as Result, evaluate as evaluate
    from ttamer.evaluation.simulation import Simulation as Simulation, simulate as simulate
    from ttamer.fitting.fits import fit as fit
    from ttamer.fitting.ladder import (
        FittedLadder as FittedLadder,
        FittedPolicy as FittedPolicy,
        Mixture as Mixture,
    )
    from ttamer.fitting.promises import Promise as Promise
    from ttamer.policy.base import Future as Future, Ladder as Ladder, Policy as Policy
    from ttamer.policy.index import IndexPolicy as IndexPolicy
    from ttamer.policy.session import Explanation as Explanation, Session as Session
    from ttamer.policy.walk import WalkPolicy as WalkPolicy
    from ttamer.problem.problem import (
        Edge as Edge,
        LossGrid as LossGrid,
        Node as Node,
        Problem as Problem,
    )
    from ttamer.reporting.page import report as report
    from ttamer.runtime.cascade import Cascade as Cascade
    from ttamer.runtime.collecting import collect as collect
    from ttamer.runtime.reply import CascadeFailed as CascadeFailed, Outcome as Outcome
    from ttamer.solvers import solve as solve, solve_ladder as solve_ladder
    from ttamer.theory.optimum import (
        Optima as Optima,
        offline_optimum as offline_optimum,
        optima as optima,
    )
    from ttamer.trace.trace import Trace as Trace

# Public names by module, loaded when first used: importing ttamer loads no NumPy.
_NAMES = {
    "artefact.file": "inspect load save",
    "errors": "TTamerError ArgumentError ArtefactDamaged ArtefactError ArtefactTooNew CascadeError "
    "MissingExtra ObservationError ProblemError TraceError TraceWarning",
    "evaluation.frontiers": "Frontier frontier",
    "evaluation.results": "Result evaluate",
    "evaluation.simulation": "Simulation simulate",
    "fitting.ladder": "FittedLadder FittedPolicy Mixture",
    "fitting.promises": "Promise",
    "fitting.fits": "fit",
    "policy.base": "Future Ladder Policy",
    "policy.index": "IndexPolicy",
    "policy.session": "Explanation Session",
    "policy.walk": "WalkPolicy",
    "problem.problem": "Edge LossGrid Node Problem",
    "reporting.page": "report",
    "runtime.cascade": "Cascade",
    "runtime.collecting": "collect",
    "runtime.reply": "CascadeFailed Outcome",
    "solvers": "solve solve_ladder",
    "theory.optimum": "Optima offline_optimum optima",
    "cascade": "CascadeSpec",
    "trace.trace": "Trace",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name == "datasets":
        return import_module("ttamer.datasets")
    if name not in _MODULES:
        raise AttributeError(f"module 'ttamer' has no attribute {name!r}")
    value: object = getattr(import_module(f"ttamer.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_MODULES, "datasets", "__version__"])
