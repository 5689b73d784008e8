"""``python -m ttamer`` is the command line."""

import sys

from ttamer.cli import main

sys.exit(main())
