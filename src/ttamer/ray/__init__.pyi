from ttamer.ray.cluster import WorkLost as WorkLost
from ttamer.ray.cluster import joined as joined
from ttamer.ray.collecting import collect as collect
from ttamer.ray.collecting import collect_parquet as collect_parquet
from ttamer.ray.fitting import fit_parquet as fit_parquet
from ttamer.ray.serving import application as application
from ttamer.ray.serving import build as build
