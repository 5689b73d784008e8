"""The traces of experiments, which are not in the wheel."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from traces import load as load, names as names, stream as stream
