"""The paper's theory as running code: optima to compare with, and its two demonstrations."""

from ttamer.theory.contraction import (
    Contraction as Contraction,
    contract as contract,
    draw_contraction as draw_contraction,
)
from ttamer.theory.no_recall import Impossibility as Impossibility, impossibility as impossibility
from ttamer.theory.optimal_values import (
    Optima as Optima,
    no_recall_optimum as no_recall_optimum,
    offline_optimum as offline_optimum,
    online_optimum as online_optimum,
    optima as optima,
)
from ttamer.theory.synthetic import (
    Experiment as Experiment,
    experiment as experiment,
    if_stop_experiments as if_stop_experiments,
)
