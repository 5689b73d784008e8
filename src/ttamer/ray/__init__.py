"""Many machines, by Ray: fitting, collecting and serving on a cluster.

::

    from ttamer import ray as cluster

    ladder = cluster.fit_parquet(["day1.parquet", "day2.parquet"], "cascade.toml")
    trace = cluster.collect(inputs, {"small": small, "large": LargeModel})
    application = cluster.application("cascade.toml", "policy.ttamer")
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ttamer.errors import MissingExtra

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
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "WorkLost",
    "application",
    "build",
    "collect",
    "collect_parquet",
    "fit_parquet",
    "joined",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ttamer.ray' has no attribute {name!r}")
    try:
        module = import_module(f"ttamer.ray.{home}")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra("ray", "ray") from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
