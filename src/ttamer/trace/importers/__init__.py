"""Logs of other projects, read as traces."""

from ttamer.trace.importers.apparate import import_apparate as import_apparate
from ttamer.trace.importers.frugalml import import_frugalml as import_frugalml
from ttamer.trace.importers.long_csv import import_long_csv as import_long_csv
