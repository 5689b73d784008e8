"""Fitting, collecting and serving on a cluster, with Ray.

::

    from ttamer import ray as cluster

    ladder = cluster.fit_parquet(["day1.parquet", "day2.parquet"], "cascade.toml")
    trace = cluster.collect(inputs, {"small": small, "large": LargeModel})
    application = cluster.application("cascade.toml", "policy.ttamer")
"""

from ttamer._extras import require

require("ray", "ray")

from ttamer.ray.cluster import WorkLost as WorkLost, joined as joined
from ttamer.ray.collecting import collect as collect, collect_parquet as collect_parquet
from ttamer.ray.fitting import fit_parquet as fit_parquet
from ttamer.ray.serving import application as application, build as build
