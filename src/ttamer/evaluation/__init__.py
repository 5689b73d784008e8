"""Evaluation: how a rule does on a trace, and the frontiers of many rules."""

from ttamer.evaluation.frontiers import Frontier as Frontier, Point as Point, frontier as frontier
from ttamer.evaluation.results import (
    Difference as Difference,
    Result as Result,
    compare as compare,
    evaluate as evaluate,
)
from ttamer.evaluation.simulation import Simulation as Simulation, simulate as simulate
