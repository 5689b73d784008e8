from ttamer import datasets as datasets
from ttamer._version import __version__ as __version__
from ttamer.artefact.files import inspect as inspect
from ttamer.artefact.files import load as load
from ttamer.artefact.files import save as save
from ttamer.errors import (
    ArgumentError as ArgumentError,
)
from ttamer.errors import (
    ArtefactDamaged as ArtefactDamaged,
)
from ttamer.errors import (
    ArtefactError as ArtefactError,
)
from ttamer.errors import (
    ArtefactTooNew as ArtefactTooNew,
)
from ttamer.errors import (
    CascadeError as CascadeError,
)
from ttamer.errors import (
    MissingExtra as MissingExtra,
)
from ttamer.errors import (
    ObservationError as ObservationError,
)
from ttamer.errors import (
    ProblemError as ProblemError,
)
from ttamer.errors import (
    TraceError as TraceError,
)
from ttamer.errors import (
    TraceWarning as TraceWarning,
)
from ttamer.errors import (
    TTamerError as TTamerError,
)
from ttamer.evaluation.frontiers import Frontier as Frontier
from ttamer.evaluation.frontiers import frontier as frontier
from ttamer.evaluation.results import Result as Result
from ttamer.evaluation.results import evaluate as evaluate
from ttamer.evaluation.simulation import Simulation as Simulation
from ttamer.evaluation.simulation import simulate as simulate
from ttamer.fitted.ladder import FittedLadder as FittedLadder
from ttamer.fitted.ladder import FittedPolicy as FittedPolicy
from ttamer.fitted.mixture import Mixture as Mixture
from ttamer.fitted.promise import Promise as Promise
from ttamer.fitting.plans import fit as fit
from ttamer.policy.base import Ladder as Ladder
from ttamer.policy.base import Policy as Policy
from ttamer.policy.future import Future as Future
from ttamer.policy.index import IndexPolicy as IndexPolicy
from ttamer.policy.session import Explanation as Explanation
from ttamer.policy.session import Session as Session
from ttamer.policy.walk import WalkPolicy as WalkPolicy
from ttamer.problem.problem import Edge as Edge
from ttamer.problem.problem import LossGrid as LossGrid
from ttamer.problem.problem import Node as Node
from ttamer.problem.problem import Problem as Problem
from ttamer.reporting.report import report as report
from ttamer.runtime.cascade import Cascade as Cascade
from ttamer.runtime.collecting import collect as collect
from ttamer.runtime.outcome import CascadeFailed as CascadeFailed
from ttamer.runtime.outcome import Outcome as Outcome
from ttamer.solvers import solve as solve
from ttamer.solvers import solve_ladder as solve_ladder
from ttamer.theory.optimal_values import (
    Optima as Optima,
)
from ttamer.theory.optimal_values import (
    offline_optimum as offline_optimum,
)
from ttamer.theory.optimal_values import (
    optima as optima,
)
from ttamer.trace.spec import CascadeSpec as CascadeSpec
from ttamer.trace.trace import Trace as Trace
