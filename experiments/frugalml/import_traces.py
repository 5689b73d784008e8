"""Turn FrugalML's tables into a folder of traces that ``experiments/bench.py`` reads.

    python experiments/frugalml/import_traces.py TABLES FOLDER
    python experiments/bench.py FOLDER

TABLES holds ``frugalml_<set>.parquet`` (four services' answers on each input) and
``frugalml_<set>_prices.csv`` (price per 10,000 calls), of Chen et al. 2020, Apache-2.0.
"""

import sys
from pathlib import Path

from tables import read

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
for table in sorted(source.glob("frugalml_*.parquet")):
    name = table.stem.removeprefix("frugalml_")
    trace = read(table, table.with_name(f"{table.stem}_prices.csv"))
    trace.write(folder / f"{name}.parquet")
    trace.spec.to_file(folder / f"{name}.toml")
    print(f"{name}: {trace}")
