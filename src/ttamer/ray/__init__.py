"""Many machines, by Ray: fitting, collecting and serving on a cluster.

::

    from ttamer import ray as cluster

    ladder = cluster.fit_parquet(["day1.parquet", "day2.parquet"], "cascade.toml")
    trace = cluster.collect(inputs, {"small": small, "large": LargeModel})
    application = cluster.application("cascade.toml", "policy.ttamer")
"""

from typing import TYPE_CHECKING

from ttamer.lazy_names import lazy_names

if TYPE_CHECKING:
    from ttamer.ray.cluster import WorkLost, joined
    from ttamer.ray.collecting import collect, collect_parquet
    from ttamer.ray.fitting import fit_parquet
    from ttamer.ray.serving import application, build

# Where each public name lives; they load when first used.
_HOMES = {
    "cluster": ("WorkLost", "joined"),
    "collecting": ("collect", "collect_parquet"),
    "fitting": ("fit_parquet",),
    "serving": ("application", "build"),
}

__all__ = [
    "WorkLost",
    "application",
    "build",
    "collect",
    "collect_parquet",
    "fit_parquet",
    "joined",
]


__getattr__ = lazy_names("ttamer.ray", _HOMES, needs="ray")


def __dir__() -> list[str]:
    return __all__
