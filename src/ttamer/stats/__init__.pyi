from ttamer.stats.bounds import (
    betting_p as betting_p,
)
from ttamer.stats.bounds import (
    betting_upper as betting_upper,
)
from ttamer.stats.bounds import (
    binomial_p as binomial_p,
)
from ttamer.stats.bounds import (
    binomial_upper as binomial_upper,
)
from ttamer.stats.envelope import (
    area_under as area_under,
)
from ttamer.stats.envelope import (
    cost_at_error as cost_at_error,
)
from ttamer.stats.envelope import (
    error_at_cost as error_at_cost,
)
from ttamer.stats.envelope import (
    lower_envelope as lower_envelope,
)
from ttamer.stats.isotonic import falling as falling
from ttamer.stats.isotonic import rising as rising
from ttamer.stats.logistic import fit_logistic as fit_logistic
from ttamer.stats.logistic import logit as logit
from ttamer.stats.logistic import sigmoid as sigmoid
from ttamer.stats.paired import paired_p as paired_p
from ttamer.stats.paired import paired_upper as paired_upper
