"""FrugalML's tables as traces: the replies of several services, and a list of prices."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

import ttamer as tt

_FIELDS = {"conf": "confidence", "pred": "prediction", "correct": "correct"}
_CALLS = 10_000  # prices are per so many calls


def read(table: Path, prices: Path) -> tt.Trace:
    """Return a table of services as a trace, the cheapest service first."""
    frame = pd.read_parquet(table) if table.suffix == ".parquet" else pd.read_csv(table)
    listed = pd.read_csv(prices)
    price = dict(zip(map(_plain, listed.iloc[:, -2]), listed.iloc[:, -1] / _CALLS, strict=True))
    services = [c.removeprefix("conf__") for c in frame.columns if c.startswith("conf__")]
    services.sort(key=lambda service: price[_plain(service)])  # equal prices stay as in the table
    names = {f"{old}__{s}": f"{s}.{new}" for s in services for old, new in _FIELDS.items()}
    frame = frame.rename(columns={**names, "true_label": "label"})
    return tt.Trace.from_frame(frame, costs={s: price[_plain(s)] for s in services})


def _plain(name: str) -> str:
    """Return a name as column titles write it: ``GitHub(CNN)`` as ``GitHub_CNN``."""
    return re.sub(r"\W+", "_", name).strip("_")
