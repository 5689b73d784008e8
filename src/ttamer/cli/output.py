"""Names of ``tables`` for the commands that argparse still parses."""

from ttamer.cli.tables import (
    as_json as as_json,
    paint as paint,
    progress_line as progress_line,
    table as table,
)
