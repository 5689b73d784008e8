from ttamer.problem.problem import Edge as Edge
from ttamer.problem.problem import LossGrid as LossGrid
from ttamer.problem.problem import Moves as Moves
from ttamer.problem.problem import Node as Node
from ttamer.problem.problem import Problem as Problem
