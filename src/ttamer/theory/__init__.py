"""The paper's theory as running code: optima to compare with, and its demonstrations."""

from ttamer.theory.experiments import (
    EXPERIMENTS as EXPERIMENTS,
    Contraction as Contraction,
    Experiment as Experiment,
    contract as contract,
    experiment as experiment,
)
from ttamer.theory.optimum import (
    Optima as Optima,
    impossibility as impossibility,
    offline_optimum as offline_optimum,
    optima as optima,
)
