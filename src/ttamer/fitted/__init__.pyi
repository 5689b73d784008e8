from ttamer.fitted.gap import Gap as Gap
from ttamer.fitted.ladder import FittedLadder as FittedLadder, FittedPolicy as FittedPolicy
from ttamer.fitted.mixture import Mixture as Mixture
from ttamer.fitted.promise import Promise as Promise
from ttamer.fitted.replay import (
    Family as Family,
    Played as Played,
    Rule as Rule,
    Setting as Setting,
)
