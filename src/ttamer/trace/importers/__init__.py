"""Logs of other projects, read as traces."""

from ttamer.trace.importers.apparate import import_apparate
from ttamer.trace.importers.frugalml import import_frugalml
from ttamer.trace.importers.long_csv import import_long_csv

__all__ = ["import_apparate", "import_frugalml", "import_long_csv"]
