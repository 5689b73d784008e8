from ttamer.fitted.gap import Gap as Gap
from ttamer.fitted.ladder import FittedLadder as FittedLadder
from ttamer.fitted.ladder import FittedPolicy as FittedPolicy
from ttamer.fitted.mixture import Mixture as Mixture
from ttamer.fitted.promise import Promise as Promise
from ttamer.fitted.replay import (
    Family as Family,
)
from ttamer.fitted.replay import (
    Played as Played,
)
from ttamer.fitted.replay import (
    Rule as Rule,
)
from ttamer.fitted.replay import (
    Setting as Setting,
)
