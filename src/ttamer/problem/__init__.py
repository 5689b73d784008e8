"""Problems: nodes, edges, loss supports and transition matrices."""

from ttamer.problem.problem import (
    Edge as Edge,
    LossGrid as LossGrid,
    Moves as Moves,
    Node as Node,
    Problem as Problem,
)
