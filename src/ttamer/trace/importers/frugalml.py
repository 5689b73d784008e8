"""FrugalML's tables: the replies of several services, and a list of prices.

The table has ``true_label`` and, for each service m, ``conf__m``, ``pred__m`` and ``correct__m``.
The prices are per 10,000 calls; a cost is the price of one call.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

from ttamer.errors import CascadeError, TraceError
from ttamer.trace.classes import shown
from ttamer.trace.columns import Layout
from ttamer.trace.files import open_source, read_source
from ttamer.trace.spec import CascadeNode, CascadeSpec
from ttamer.trace.trace import OnBad, Trace

_FIELDS = {"confidence": "conf__", "prediction": "pred__", "correct": "correct__"}
_CALLS = 10_000


def import_frugalml(
    table: str | os.PathLike[str],
    prices: str | os.PathLike[str],
    *,
    on_bad: OnBad = "refuse",
) -> Trace:
    r"""Read a table of services as a trace, the cheapest service first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table, prices = Path(folder, "table.csv"), Path(folder, "prices.csv")
    ...     _ = table.write_text("true_label,conf__A,pred__A,conf__B_x,pred__B_x\n1,0.9,1,0.2,0\n")
    ...     _ = prices.write_text("Index,MLaaS(API),Cost per 10k\n0,A,15\n1,B(x),5\n")
    ...     trace = import_frugalml(table, prices)
    >>> trace.names, trace.cost.tolist()
    (('B_x', 'A'), [0.0005, 0.0015])
    """
    place = str(table)
    source = open_source(table)
    columns = source.columns
    for column in columns:
        if columns.count(column) > 1:
            raise TraceError(f"{place}: the column {column!r} appears twice; keep one")
    services = [c.removeprefix("conf__") for c in columns if c.startswith("conf__")]
    if not services:
        raise TraceError(f"{place}: there is no column conf__<service>; this is no FrugalML table")
    price = _prices(prices)
    unpriced = [service for service in services if _plain(service) not in price]
    if unpriced:
        raise TraceError(
            f"{prices}: no price for {shown(unpriced)}; it has prices for {shown(price)}"
        )
    services.sort(key=lambda service: price[_plain(service)])  # equal prices stay as in the table
    try:
        spec = CascadeSpec(
            tuple(CascadeNode(s, price[_plain(s)] / _CALLS) for s in services), order="any"
        )
    except CascadeError as error:
        raise TraceError(f"{place}: the services make no cascade: {error}") from None
    fields: dict[str, dict[int, str]] = {}
    for field, prefix in _FIELDS.items():
        found = {i: prefix + s for i, s in enumerate(services) if prefix + s in columns}
        if found and len(found) < len(services):
            lacking = next(prefix + s for s in services if prefix + s not in columns)
            raise TraceError(f"{place}: the column {lacking!r} is missing")
        fields[field] = found
    label = "true_label" if "true_label" in columns else None
    used = {name for by_node in fields.values() for name in by_node.values()} | {label, "row"}
    notes = []
    if unused := [column for column in columns if column not in used]:
        notes.append(f"columns not used: {shown(unused)}")
    if others := sorted(price.keys() - {_plain(s) for s in services}):
        notes.append(f"prices of services that are not in the table: {shown(others)}")
    return read_source(source, Layout(place, spec, label, fields, {}, tuple(notes)), on_bad)


def _prices(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return the price of 10,000 calls by the plain form of a service's name."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error):
        raise TraceError(f"{path}: is not CSV text in UTF-8") from None
    name_at = _find(header, ("api", "service", "model", "name"))
    price_at = _find(header, ("cost", "price"))
    if name_at is None or price_at is None or not rows:
        raise TraceError(
            f"{path}: is not a list of prices: it needs a header with a service and a price column "
            "('MLaaS(API)', 'Cost per 10k'), and one line for each service"
        )
    prices: dict[str, float] = {}
    for line, row in enumerate(rows, start=2):
        try:
            name, price = _plain(row[name_at]), float(row[price_at])
        except (IndexError, ValueError):
            raise TraceError(f"{path}: line {line}: there is no service and price here") from None
        if name in prices:
            raise TraceError(f"{path}: line {line}: {row[name_at]!r} has a price already; keep one")
        if not 0 <= price < float("inf"):
            raise TraceError(f"{path}: line {line}: the price of {row[name_at]!r} is {price}")
        prices[name] = price
    return prices


def _find(header: list[str], words: tuple[str, ...]) -> int | None:
    for position, title in enumerate(header):
        if any(word in title.lower() for word in words):
            return position
    return None


def _plain(name: str) -> str:
    """Return a name as column titles write it: ``GitHub(CNN)`` as ``GitHub_CNN``."""
    return re.sub(r"\W+", "_", name).strip("_")
