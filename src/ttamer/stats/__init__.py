"""Statistics that fits and tests share: isotonic regression, envelopes, confidence bounds."""

from ttamer.stats.bounds import (
    betting_p as betting_p,
    betting_upper as betting_upper,
    binomial_p as binomial_p,
    binomial_upper as binomial_upper,
)
from ttamer.stats.envelope import (
    area_under as area_under,
    cost_at_error as cost_at_error,
    error_at_cost as error_at_cost,
    lower_envelope as lower_envelope,
)
from ttamer.stats.isotonic import rising as rising
from ttamer.stats.markov import (
    MarkovCost as MarkovCost,
    MarkovTest as MarkovTest,
    markov_cost as markov_cost,
    markov_test as markov_test,
)
from ttamer.stats.paired import (
    Gap as Gap,
    paired_gap as paired_gap,
    paired_p as paired_p,
    paired_upper as paired_upper,
)
