"""Problems: nodes, edges, loss supports and transition matrices."""

from ttamer.problem.graph import (
    Edge as Edge,
    LossGrid as LossGrid,
    Moves as Moves,
    Node as Node,
)
from ttamer.problem.problem import Problem as Problem
