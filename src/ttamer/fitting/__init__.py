"""Fitting: from a trace to a ladder of policies, and what decides with them."""

from ttamer.fitting.belief import RiskModel as RiskModel, Seen as Seen
from ttamer.fitting.fits import fit as fit
from ttamer.fitting.fitted import FitRecord as FitRecord
from ttamer.fitting.ladder import (
    FittedLadder as FittedLadder,
    FittedPolicy as FittedPolicy,
    Mixture as Mixture,
)
from ttamer.fitting.promises import Promise as Promise
from ttamer.fitting.replay import (
    Family as Family,
    Played as Played,
    Rule as Rule,
    Setting as Setting,
)
from ttamer.fitting.worth import CallPlan as CallPlan, plan_calls as plan_calls
