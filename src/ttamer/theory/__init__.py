"""The paper's theory as running code: optima to compare with, and its demonstrations."""

from ttamer.theory.experiments import (
    Contraction as Contraction,
    Experiment as Experiment,
    contract as contract,
    experiment as experiment,
    if_stop_experiments as if_stop_experiments,
)
from ttamer.theory.optimum import (
    Impossibility as Impossibility,
    Optima as Optima,
    impossibility as impossibility,
    no_recall_optimum as no_recall_optimum,
    offline_optimum as offline_optimum,
    online_optimum as online_optimum,
    optima as optima,
)
