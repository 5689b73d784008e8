"""Statistics that fits and tests share: envelopes, exact bounds, tests of a chain."""

from ttamer.stats.bounds import Gap as Gap, paired_gap as paired_gap
from ttamer.stats.markov import (
    MarkovCost as MarkovCost,
    MarkovTest as MarkovTest,
    markov_cost as markov_cost,
    markov_test as markov_test,
)
