"""Fitting, collecting and serving on a cluster, with Ray.

::

    from ttamer import ray as cluster

    ladder = cluster.fit_parquet(["day1.parquet", "day2.parquet"], "cascade.toml")
    trace = cluster.collect(inputs, {"small": small, "large": LargeModel})
    application = cluster.application("cascade.toml", "policy.ttamer")
"""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, extra="ray")
