"""``python -m ttamer`` is the command line."""

import sys

from ttamer.cli import main

if __name__ == "__main__":  # a process that a command starts imports this module too
    sys.exit(main())
