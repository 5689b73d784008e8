from ttamer.theory.contraction import Contraction as Contraction
from ttamer.theory.contraction import contract as contract
from ttamer.theory.contraction import draw_contraction as draw_contraction
from ttamer.theory.no_recall import Impossibility as Impossibility
from ttamer.theory.no_recall import impossibility as impossibility
from ttamer.theory.optimal_values import (
    Optima as Optima,
)
from ttamer.theory.optimal_values import (
    no_recall_optimum as no_recall_optimum,
)
from ttamer.theory.optimal_values import (
    offline_optimum as offline_optimum,
)
from ttamer.theory.optimal_values import (
    online_optimum as online_optimum,
)
from ttamer.theory.optimal_values import (
    optima as optima,
)
from ttamer.theory.synthetic import Experiment as Experiment
from ttamer.theory.synthetic import experiment as experiment
from ttamer.theory.synthetic import if_stop_experiments as if_stop_experiments
